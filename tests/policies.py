"""Ways in which an effect can be helped, each at the outside world, and what must become of a step that was killed in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from leasekeeper import Answered, Observed, effect
from leasekeeper.runs.effect import Effect, Step
from leasekeeper.testing.outside import Refused, Trouble, call

AMOUNT = 999
LARGE = 100_000
Next = Literal["again", "adopt", "stop"]


@dataclass(frozen=True)
class Policy:
    """A way to be helped. ``unapplied`` and ``applied``: what the next life does that finds an intent without an outcome.

    ``where`` is the effect at the outside world; ``make`` makes the effect for the world's address.
    """

    name: str
    where: str
    make: Callable[[str], Any]
    unapplied: Next
    applied: Next
    kind: Literal["do", "memo"] = "do"


# ---------------------------------------------------------------- effects


def bare(url: str) -> Callable[[str], Any]:
    """Nothing is declared, nothing is known of the step: at most once."""

    def charge(subject: str) -> Any:
        return call(url, "POST", "/till/charges", {"order": subject, "amount_cents": AMOUNT})

    return charge


def _charging(url: str, path: str, *, pad: int = 0, **declared: Any) -> Effect:
    @effect(**declared)
    def charge(step: Step, subject: str) -> Any:
        charged = call(url, "POST", path, {"order": subject, "amount_cents": AMOUNT}, headers=step.headers())
        return {**charged, **({"pad": "x" * pad} if pad else {})}

    return charge


def _seen_at(charge: Effect, url: str, path: str, consistency: Literal["strong", "eventual"]) -> Effect:
    @charge.preflight
    def charged(step: Step, subject: str) -> Observed:
        found = call(url, "GET", path, query={"order": subject})["charges"]
        return Observed(found[0] if found else None, applied=bool(found), consistency=consistency)

    return charge


def _verified_at(charge: Effect, url: str, path: str) -> Effect:
    @charge.verify
    def paid(step: Step, subject: str, result: Any) -> bool:
        return bool(call(url, "GET", f"{path}/{result['id']}")["status"] == "paid")

    return charge


def once(url: str) -> Effect:
    """At most once, with a preflight that can be believed."""
    return _seen_at(_charging(url, "/till/charges", at_most_once=True), url, "/till/charges", "strong")


def dedupes(url: str) -> Effect:
    """The callee honours the key; nobody is asked before."""
    return _verified_at(_charging(url, "/charges", dedupes=True, key_ttl="24h"), url, "/charges")


def large(url: str) -> Effect:
    """The same with a result that does not fit into a record."""
    return _charging(url, "/charges", dedupes=True, key_ttl="24h", pad=LARGE)


def settled(url: str) -> Effect:
    """The callee honours the key, and its effect shows only the second time that somebody looks."""
    charge = _charging(url, "/charges", dedupes=True, key_ttl="24h", settle=10)
    looks: list[str] = []

    @charge.verify
    def paid(step: Step, subject: str, result: Any) -> bool:
        looks.append(result["id"])
        return len(looks) > 1

    return charge


def raising(url: str) -> Effect:
    """Nothing is declared; it happens, and then an error is raised."""

    @effect
    def charge(step: Step, subject: str) -> Any:
        step.spool("so far all is well")
        bare(url)(subject)
        raise RuntimeError("after all")

    return charge


def lagging(url: str) -> Effect:
    """The callee honours the key; the preflight reads a replica that lags behind."""
    charge = _charging(url, "/charges", dedupes=True, key_ttl="24h")
    return _verified_at(_seen_at(charge, url, "/charges", "eventual"), url, "/charges")


def probe(url: str) -> Effect:
    """The callee knows no keys; the preflight can be believed."""
    charge = _seen_at(_charging(url, "/till/charges", probe=True), url, "/till/charges", "strong")
    return _verified_at(charge, url, "/till/charges")


def blind(url: str) -> Effect:
    """The callee knows no keys, and the preflight reads a replica that lags behind."""

    @effect
    def send(step: Step, subject: str) -> Any:
        mail = {"to": f"{subject}@example.org", "subject": "receipt", "body": "paid"}
        return call(url, "POST", "/mails", mail, headers=step.headers())

    @send.preflight
    def sent(step: Step, subject: str) -> Observed:
        found = call(url, "GET", "/mails", query={"to": f"{subject}@example.org"})["mails"]
        return Observed(found[0] if found else None, applied=bool(found), consistency="eventual")

    return send


def fences(url: str) -> Effect:
    """The callee refuses older owners, and shows what it has."""

    @effect(fences=True, probe=True)
    def write(step: Step, subject: str) -> Any:
        return call(url, "PUT", f"/configs/{subject}", {"value": "new"}, headers=step.headers())

    @write.preflight
    def written(step: Step, subject: str) -> Observed:
        try:
            found = call(url, "GET", f"/configs/{subject}")
        except Refused:
            return Observed(None, applied=False)
        return Observed({"name": subject, "version": found["version"]}, applied=found["value"] == "new")

    @write.verify
    def there(step: Step, subject: str, result: Any) -> bool:
        return bool(call(url, "GET", f"/configs/{subject}")["value"] == "new")

    return write


def ask(url: str) -> Callable[[str], Any]:
    """What a memo asks: a model."""

    def complete(subject: str) -> Any:
        asked = {"model": "m-1", "user": subject, "messages": [{"role": "user", "content": f"plan {subject}"}]}
        answer = call(url, "POST", "/v1/chat/completions", asked)
        return Answered(answer["choices"][0]["message"]["content"], about=answer["usage"])

    return complete


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("bare", "till.charge", bare, "stop", "stop"),
        Policy("once", "till.charge", once, "stop", "adopt"),
        Policy("dedupes", "payments.charge", dedupes, "again", "again"),
        Policy("lagging", "payments.charge", lagging, "again", "again"),
        Policy("large", "payments.charge", large, "again", "again"),
        Policy("stored", "payments.charge", large, "again", "again"),
        Policy("anchored", "payments.charge", dedupes, "again", "again"),
        Policy("settled", "payments.charge", settled, "again", "again"),
        Policy("stateful", "payments.charge", dedupes, "again", "again"),
        Policy("probe", "till.charge", probe, "again", "adopt"),
        Policy("blind", "mail.send", blind, "stop", "stop"),
        Policy("fences", "configs.write", fences, "again", "adopt"),
        Policy("memo", "chat.complete", ask, "again", "again", "memo"),
        Policy("ten", "payments.charge", dedupes, "again", "again"),
        Policy("raising", "till.charge", raising, "stop", "stop"),
    )
}
# Those that are one step which comes to an end. Of the others one is ten, each with a subject of its own.
ONE_STEP = [name for name in POLICIES if name not in ("ten", "raising")]
# What the world's readers see of these is the past, always.
LAGS = (
    Trouble("lag", "payments.list", times=0, ms=24 * 3600 * 1000),
    Trouble("lag", "mail.list", times=0, ms=24 * 3600 * 1000),
)
