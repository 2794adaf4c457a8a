"""Grants: what one says, where it is live, and what is refused before anything happens."""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import inspect
import json
import math
import pickle
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.errors import AuthError, ConfigError, LeasekeeperError, LeaseLost, LeaseSuspended, Misuse, StaleToken
from leasekeeper.fencing import TOKEN_MAX
from leasekeeper.guards.grant import Grant, Issuer, Verifier, digest_of, requires_grant
from leasekeeper.guards.grant.terms import TEXT_MAX
from leasekeeper.guards.sqlite import Fence
from leasekeeper.signing import HmacKey

KEY = HmacKey("2026-11", b"a secret that nobody else knows.")
HOST = {"host": "a.example"}
BOOT_S, WALL_S = 1000.0, 1_790_000_000.0


class Ticket:
    """A lease on clocks that the test turns: its gate passes until it is paused or lost."""

    def __init__(self, token: int = 7, name: str = "certs", claim: str = "nonce", holder: str = "replica-1") -> None:
        self.token = token
        self.name = name
        self.claim = claim
        self.holder = holder
        self.proof_s = self.now_s = BOOT_S
        self.wall_s = WALL_S
        self.error: LeasekeeperError | None = None
        self.needs: list[float] = []

    def pass_(self, seconds: float, *, beat: bool = True) -> None:
        """Let time go by, with a heartbeat confirmed at its end."""
        self.now_s += seconds
        self.wall_s += seconds
        if beat:
            self.proof_s = self.now_s

    def check(self, need: float = 0.0) -> int:
        """The token, or what this lease is told to say."""
        self.needs.append(need)
        if self.error is not None:
            raise self.error
        return self.token

    def remaining(self) -> float:
        """Seconds of authority."""
        return 0.0 if self.error is not None else self.deadlines()[1] - self.now_s

    def deadlines(self) -> tuple[float, float]:
        """A pause after 5 s, an end after 10 s."""
        return self.proof_s + 5.0, self.proof_s + 10.0

    def issuer(self, key: HmacKey = KEY) -> Issuer:
        """An issuer on this lease's clocks."""
        return Issuer(key, clock=lambda: self.now_s, wall=lambda: self.wall_s)

    def verifier(self, *keys: HmacKey, skew_s: float = 0.5, ahead_s: float = 0.0) -> Verifier:
        """A resource whose wall clock is ``ahead_s`` before the issuer's."""
        return Verifier(*(keys or (KEY,)), skew_s=skew_s, wall=lambda: self.wall_s + ahead_s)

    def grant(self, arguments: dict[str, object] | None = None) -> Grant:
        """A grant to rotate."""
        return self.issuer().grant(self, "rotate", HOST if arguments is None else arguments)


@pytest.fixture
def lease() -> Ticket:
    """A lease with 10 s of authority."""
    return Ticket()


def accept(verifier: Verifier, text: str, **changed: Any) -> Grant:
    """Ask the resource for what `Ticket.grant` grants, unless it is changed."""
    wanted: dict[str, Any] = {"name": "certs", "effect": "rotate", "arguments": HOST, **changed}
    return verifier.accept(text, **wanted)


def signed(payload: bytes, key: HmacKey = KEY, form: str = "grant1.{}.{}") -> str:
    """A text around any payload, rightly signed."""
    head = form.format(key.key_id, base64.urlsafe_b64encode(payload).rstrip(b"=").decode())
    return f"{head}.{base64.urlsafe_b64encode(key.sign(head.encode())).rstrip(b'=').decode()}"


def members(text: str) -> dict[str, Any]:
    """What stands in a text's payload."""
    payload = text.split(".")[2]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


# ---------------------------------------------------------------- what it says


def test_a_grant_says_who_may_do_what_until_when(lease: Ticket) -> None:
    """ROW A26: lock, token, holder, claim, deadline and effect digest are in it, and the resource reads just these."""
    grant = lease.grant()
    assert (grant.name, grant.token, grant.claim, grant.holder) == ("certs", 7, "nonce", "replica-1")
    assert (grant.effect, grant.digest) == ("rotate", digest_of(HOST))
    assert (grant.issued_ms, grant.until_ms) == (WALL_S * 1000, WALL_S * 1000 + 10_000)
    assert accept(lease.verifier(), grant.text) == grant
    assert members(grant.text)["token"] == "7"


def test_the_digest_is_what_anybody_can_make(lease: Ticket) -> None:
    """The digest is SHA-256 of the arguments' RFC 8785 JSON: a program in any language can tell whether it fits."""
    assert digest_of({"b": 1.0, "a": ["ä"]}) == digest_of({"a": ("ä",), "b": 1})
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    wrong: tuple[Any, ...] = (None, [], "host", 5)
    for no_mapping in wrong:
        with pytest.raises(ConfigError, match="arguments"):
            digest_of(no_mapping)


def test_a_text_shows_in_no_repr(lease: Ticket) -> None:
    """Whoever has the text may act: neither the grant nor any error about its text shows it."""
    grant = lease.grant()
    assert grant.text not in f"{grant!r} {grant}"
    assert "replica-1" in repr(grant)
    payload = grant.text.split(".")[2]
    for wrong in (grant.text + "!", grant.text[:-1], "x" + grant.text, grant.text * 20, payload):
        with pytest.raises(LeasekeeperError) as caught:
            accept(lease.verifier(), wrong)
        assert payload[:12] not in f"{caught.value} {vars(caught.value)}"
    with pytest.raises(ConfigError, match=r"version='grant2': expected grant1"):
        accept(lease.verifier(), grant.text.replace("grant1", "grant2"))


def test_the_largest_grant_fits(lease: Ticket) -> None:
    """Names, holder and effect of 255 four-byte characters and the largest token make a text that is read again."""
    longest = "\U0001f512" * 255
    lease = Ticket(TOKEN_MAX, longest, "c" * 64, longest)
    key = HmacKey("k" * 64, b"sixteen bytes ok")
    grant = lease.issuer(key).grant(lease, longest, HOST)
    assert len(grant.text) <= TEXT_MAX
    assert accept(lease.verifier(key), grant.text, name=longest, effect=longest) == grant


def test_it_stays_in_its_process(lease: Ticket) -> None:
    """A grant cannot be pickled or copied, and says what to hand over instead."""
    for carry in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="hand over its text"):
            carry(lease.grant())


def test_a_grant_put_together_by_hand_is_not_live(lease: Ticket) -> None:
    """ROW A26: changing the terms of a grant, or making one of terms alone, gives nothing that is let through."""
    forged = dataclasses.replace(lease.grant(), token=TOKEN_MAX)
    for use in (forged.check, forged.remaining):
        with pytest.raises(Misuse, match="by hand"):
            use()


# ---------------------------------------------------------------- at the owner


def test_the_gate_comes_first(lease: Ticket) -> None:
    """Work that is paused or over gets no grant, and nothing is signed for it; the need goes to the gate."""
    lease.issuer().grant(lease, "rotate", {}, need=1.5)
    assert lease.needs[0] == 1.5

    class NoPen:
        """A key that must not be used."""

        key_id = "k"

        def sign(self, message: bytes) -> bytes:
            raise AssertionError(message)

    for error in (LeaseSuspended(), LeaseLost()):
        lease.error = error
        with pytest.raises(type(error)):
            Issuer(NoPen()).grant(lease, "rotate", HOST)


def test_a_grant_ends_with_its_lease(lease: Ticket) -> None:
    """ROW A26: at the owner a grant is live only while the lease's gate passes."""
    grant = lease.grant()
    assert (grant.check(2.5), lease.needs[-1], grant.remaining()) == (7, 2.5, 10.0)
    for error in (LeaseSuspended("paused"), LeaseLost("over")):
        lease.error = error
        with pytest.raises(type(error), match=str(error)):
            grant.check()
        assert grant.remaining() == 0.0


def test_a_grant_ends_by_itself(lease: Ticket) -> None:
    """ROW A26: a grant that has run out is refused locally although its lease is well, and a new one can be had."""
    grant = lease.grant()
    lease.pass_(9.0)
    assert (grant.check(1.0), grant.remaining()) == (7, 1.0)
    with pytest.raises(
        LeaseSuspended, match=r"'rotate' on 'certs' \(token 7\) has 1\.00 s left and 1\.50 s are needed"
    ) as e:
        grant.check(1.5)
    assert (e.value.name, e.value.token, e.value.age_s, e.value.remaining_s, e.value.need_s) == (
        "certs",
        7,
        9.0,
        1.0,
        1.5,
    )
    lease.pass_(1.0)
    assert lease.check() == 7
    with pytest.raises(LeaseSuspended, match="get a new one"):
        grant.check()
    assert grant.remaining() == 0.0
    assert lease.grant().check() == 7


def test_wall_clocks_mean_nothing_at_the_owner(lease: Ticket) -> None:
    """G3: whatever the wall clock does, at the owner a grant lives exactly as long as the proven authority behind it."""
    grant = lease.grant()
    lease.wall_s += 10**6
    assert grant.check() == 7
    lease.wall_s -= 2 * 10**6
    lease.now_s += 10.0
    with pytest.raises(LeaseSuspended):
        grant.check()


def test_a_freeze_while_it_is_made_makes_no_deadline_later(lease: Ticket) -> None:
    """A process frozen between its two clock readings issues a deadline that is too early, never one that is too late."""

    def wall() -> float:
        before = lease.wall_s
        lease.pass_(3.0, beat=False)
        return before

    issuer = Issuer(KEY, clock=lambda: lease.now_s, wall=wall)
    grant = issuer.grant(lease, "rotate", HOST)
    assert grant.remaining() == 7.0
    assert grant.until_ms / 1000 - lease.wall_s == 4.0
    lease.pass_(8.0, beat=False)
    with pytest.raises(LeaseSuspended):
        issuer.grant(lease, "rotate", HOST)


def test_authority_that_lapses_meanwhile_gives_no_grant(lease: Ticket) -> None:
    """A lease whose gate shut right after it had passed, so that it has no deadline, ends in LeaseSuspended."""
    lease.deadlines = lambda: (-math.inf, -math.inf)  # type: ignore[method-assign]
    with pytest.raises(LeaseSuspended):
        lease.grant()


@pytest.mark.parametrize("wall_s", [-1.0, math.nan, math.inf, 1e300])
def test_a_wall_clock_that_cannot_be_is_named(lease: Ticket, wall_s: float) -> None:
    """A wall clock before 1970 or without a number gives no grant but a ConfigError."""
    lease.wall_s = wall_s
    with pytest.raises(ConfigError, match="wall clock"):
        lease.grant()


@pytest.mark.parametrize("effect", ["", "x" * 256, "a\nb", None, 5])
def test_an_effect_has_a_name(lease: Ticket, effect: Any) -> None:
    """An effect that cannot be named is a ConfigError, at the issuer and at the function."""
    for name_it in (lambda: lease.issuer().grant(lease, effect, {}), lambda: requires_grant(effect)):
        with pytest.raises(ConfigError, match="effect"):
            name_it()
    assert not lease.needs


def test_arguments_that_cannot_be_written_are_named(lease: Ticket) -> None:
    """What has no canonical JSON is a ConfigError with the path to it, before the gate is asked."""
    with pytest.raises(ConfigError) as caught:
        lease.grant({"orders": [{"id": 1}, {"id": object()}]})
    assert caught.value.field == "arguments.orders[1].id"
    assert not lease.needs


# ---------------------------------------------------------------- a function behind it


class Effect:
    """A function that has an effect, as a thread and as a task would call it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

        @requires_grant("rotate", need=1.0)
        def plain(grant: Grant, host: str, times: int = 1) -> str:
            """Rotate."""
            self.done.append((host, times))
            return f"{grant.token}:{host}"

        @requires_grant("rotate", need=1.0)
        async def coroutine(grant: Grant, host: str, times: int = 1) -> str:
            """Rotate, but wait first."""
            self.done.append((host, times))
            await asyncio.sleep(0)
            return f"{grant.token}:{host}"

        self.plain, self.coroutine = plain, coroutine

    def call(self, kind: str, *args: Any, **kwargs: Any) -> str:
        """Call one of them to its end."""
        if kind == "plain":
            return self.plain(*args, **kwargs)

        async def run() -> str:
            return await self.coroutine(*args, **kwargs)

        return asyncio.run(run())


@pytest.fixture
def effect() -> Effect:
    """A new effect."""
    return Effect()


each_kind = pytest.mark.parametrize("kind", ["plain", "coroutine"])


@each_kind
def test_with_its_grant_it_runs(lease: Ticket, effect: Effect, kind: str) -> None:
    """A live grant lets just its call through, however the arguments are spelled, as often as it lives."""
    grant = effect.plain.grant(lease, lease.issuer(), "a.example", times=1)
    assert lease.needs[0] == 1.0
    assert effect.call(kind, grant, "a.example") == "7:a.example"
    assert effect.call(kind, grant, times=1, host="a.example") == "7:a.example"
    assert effect.done == [("a.example", 1)] * 2


@each_kind
@pytest.mark.parametrize("args", [(), ("a.example",), (None, "a.example"), ("grant1.a.b.c", "a.example")])
def test_without_a_grant_it_raises(effect: Effect, kind: str, args: tuple[Any, ...]) -> None:
    """ROW A26: a call without a grant is Misuse, and the body does not begin."""
    with pytest.raises(Misuse, match="'rotate' needs a Grant"):
        effect.call(kind, *args)
    assert not effect.done


@each_kind
def test_a_text_or_a_lease_is_no_grant(lease: Ticket, effect: Effect, kind: str) -> None:
    """ROW A26: the signed text must have been read by a Verifier, and a lease alone grants nothing."""
    for other in (lease.grant().text, lease, 7):
        with pytest.raises(Misuse, match="needs a Grant"):
            effect.call(kind, other, "a.example")
    assert (
        effect.call(
            kind,
            accept(
                lease.verifier(),
                effect.plain.grant(lease, lease.issuer(), "a").text,
                arguments={"host": "a", "times": 1},
            ),
            "a",
        )
        == "7:a"
    )


@each_kind
def test_a_grant_for_something_else_raises(lease: Ticket, effect: Effect, kind: str) -> None:
    """ROW A26: a grant for another effect or for other arguments is Misuse, and the body does not begin."""
    grant = effect.plain.grant(lease, lease.issuer(), "a.example")
    for args in (("b.example",), ("a.example", 2)):
        with pytest.raises(Misuse, match="for other arguments"):
            effect.call(kind, grant, *args)
    other = lease.issuer().grant(lease, "delete", {"host": "a.example", "times": 1})
    with pytest.raises(Misuse, match="for 'delete'"):
        effect.call(kind, other, "a.example")
    assert not effect.done


@each_kind
def test_a_grant_that_is_live_no_more_raises(lease: Ticket, effect: Effect, kind: str) -> None:
    """ROW A26: a grant with less left than the effect needs, or whose lease is paused or lost, is refused before the body."""
    grant = effect.plain.grant(lease, lease.issuer(), "a.example")
    lease.pass_(9.5)
    with pytest.raises(LeaseSuspended):
        effect.call(kind, grant, "a.example")
    grant = effect.plain.grant(lease, lease.issuer(), "a.example")
    for error in (LeaseSuspended(), LeaseLost()):
        lease.error = error
        with pytest.raises(type(error)):
            effect.call(kind, grant, "a.example")
    assert not effect.done


def test_a_coroutine_is_checked_when_it_begins(lease: Ticket, effect: Effect) -> None:
    """ROW A26: a coroutine that was made in time and is awaited too late does nothing."""
    grant = effect.coroutine.grant(lease, lease.issuer(), "a.example")

    async def late() -> None:
        made = effect.coroutine(grant, "a.example")
        lease.pass_(20.0)
        await made

    with pytest.raises(LeaseSuspended):
        asyncio.run(late())
    assert not effect.done


def test_arguments_changed_after_the_grant_are_seen(lease: Ticket) -> None:
    """ROW A26: the digest is made again at the call, so a list that grew meanwhile is other arguments."""
    done: list[object] = []

    @requires_grant("delete")
    def delete(grant: Grant, /, *paths: list[str], **options: bool) -> None:
        done.append(paths)

    paths = ["/a"]
    grant = delete.grant(lease, lease.issuer(), paths, recursive=True)
    delete(grant, paths, recursive=True)
    paths.append("/")
    with pytest.raises(Misuse, match="other arguments"):
        delete(grant, paths, recursive=True)
    assert len(done) == 1


def test_a_gated_function_looks_like_itself(effect: Effect, lease: Ticket) -> None:
    """Name, docstring and kind stay; arguments that do not fit are the TypeError that the function itself would raise."""
    assert (effect.plain.__doc__, effect.plain.effect) == ("Rotate.", "rotate")
    assert inspect.iscoroutinefunction(effect.coroutine)
    assert not inspect.iscoroutinefunction(effect.plain)
    with pytest.raises(TypeError, match="host"):
        effect.plain(lease.grant())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="host"):
        effect.plain.grant(lease, lease.issuer())  # type: ignore[call-arg]


def test_only_functions_whose_body_runs_at_the_call_can_be_gated() -> None:
    """A generator would be checked long before its body runs; what takes no grant could be given none. Both are Misuse."""

    def generator(grant: Grant) -> Iterator[int]:
        yield 1

    async def agenerator(grant: Grant) -> AsyncIterator[int]:
        yield 1

    for function in (generator, agenerator, lambda: 1, lambda *args: args, lambda *, grant: grant, Effect, print, None):
        with pytest.raises(Misuse, match="requires_grant"):
            requires_grant("rotate")(function)  # type: ignore[arg-type]
    for need in (-1.0, math.nan, math.inf, "1", True):
        with pytest.raises(ConfigError, match="need"):
            requires_grant("rotate", need=need)  # type: ignore[arg-type]


# ---------------------------------------------------------------- at the resource


def test_a_forged_token_is_refused_by_its_signature(lease: Ticket) -> None:
    """ROW A26: a huge token, with the signature of a true grant, with one by another key, or with none, is an AuthError."""
    text = lease.grant().text
    signature = text.rpartition(".")[2]
    payload = canonical({**members(text), "token": str(TOKEN_MAX)})
    unsigned = signed(payload).rpartition(".")[0]
    other = HmacKey(KEY.key_id, b"a guess at what the secret is..")
    unknown = HmacKey("mine", b"a key that the forger made alone")
    for forged in (f"{unsigned}.{signature}", f"{unsigned}.AAAA", signed(payload, other), signed(payload, unknown)):
        with pytest.raises(AuthError):
            accept(lease.verifier(), forged)
        with pytest.raises(AuthError):
            lease.verifier().read(forged)


def test_a_grant_is_for_one_name_effect_and_arguments(lease: Ticket) -> None:
    """ROW A26: at the resource a true grant for another name, effect or other arguments is an AuthError that says which."""
    text = lease.grant().text
    verifier = lease.verifier()
    others: list[dict[str, Any]] = [
        {"name": "billing"},
        {"effect": "delete"},
        {"arguments": {}},
        {"arguments": {"host": "b.example"}},
    ]
    for changed in others:
        with pytest.raises(AuthError, match=next(iter(changed))):
            accept(verifier, text, **changed)
    assert accept(verifier, text).check() == 7


def test_it_runs_out_at_the_resource(lease: Ticket) -> None:
    """ROW A26: past its deadline a grant is refused at the resource, ``skew_s`` early; reading it for records still works."""
    grant = lease.grant()
    verifier = lease.verifier(skew_s=0.5)
    there = accept(verifier, grant.text)
    assert there.remaining() == 9.5
    lease.pass_(9.0)
    assert accept(verifier, grant.text, need=0.5).check(0.5) == 7
    for refuse in (lambda: accept(verifier, grant.text, need=0.75), lambda: there.check(0.75)):
        with pytest.raises(LeaseSuspended, match=r"0\.50 s left and 0\.75 s are needed"):
            refuse()
    lease.pass_(0.5)
    for refuse in (lambda: accept(verifier, grant.text), there.check, verifier.read(grant.text).check):
        with pytest.raises(LeaseSuspended) as caught:
            refuse()
        assert (caught.value.token, caught.value.age_s, caught.value.remaining_s) == (7, 9.5, 0.0)
    assert verifier.read(grant.text) == grant
    assert there.remaining() == 0.0


@pytest.mark.parametrize("ahead_s", [-0.5, 0.0, 0.5])
def test_within_the_skew_none_passes_after_its_deadline(lease: Ticket, ahead_s: float) -> None:
    """While wall clocks differ by at most ``skew_s``, the resource takes a fresh grant, and none whose authority has ended."""
    grant = lease.grant()
    verifier = lease.verifier(skew_s=0.5, ahead_s=ahead_s)
    assert accept(verifier, grant.text).check() == 7
    lease.pass_(10.0)
    with pytest.raises(LeaseSuspended):
        accept(verifier, grant.text)


def test_clocks_that_do_not_agree_are_named(lease: Ticket) -> None:
    """A grant from the future says that the clocks are wrong, which a person must mend; one from an hour ago has run out."""
    text = lease.grant().text
    with pytest.raises(ConfigError, match=r"issued 3600\.00 s in the future: the wall clocks of 'replica-1'"):
        accept(lease.verifier(ahead_s=-3600.0), text)
    with pytest.raises(LeaseSuspended):
        accept(lease.verifier(ahead_s=3600.0), text)
    with pytest.raises(LeaseSuspended):
        accept(lease.verifier(ahead_s=math.nan), text)


def test_what_is_signed_must_still_make_sense(lease: Ticket) -> None:
    """A payload that is rightly signed and is not what an issuer writes is a ConfigError that names the member."""
    good = members(lease.grant().text)
    wrong: list[tuple[str, bytes]] = [
        ("payload", b"{"),
        ("payload", b"[]"),
        ("payload", b"[" * 4000),
        ("payload", b"\xff"),
        ("payload", canonical({**good, "more": 1})),
        ("payload", canonical({key: good[key] for key in good if key != "until_ms"})),
        ("payload", json.dumps(good).encode()),
        ("payload", canonical(good)[:-1] + b',"token":"8"}'),
        ("payload", canonical({**good, "token": "007"})),
    ]
    changed: dict[str, list[object]] = {
        "name": ["", "a\nb", "x" * 256, 5, None],
        "holder": ["", None],
        "effect": ["", ["rotate"]],
        "token": [7, 7.5, None, True],
        "claim": ["", "c" * 65, "a b", "ä", 5],
        "digest": ["", "x" * 64, good["digest"].upper(), good["digest"][:-1], None],
        "issued_ms": [-1, "0", None, True, 1.5],
        "until_ms": [-1, [], {}, 0.5],
    }
    wrong += [(key, canonical({**good, key: value})) for key, values in changed.items() for value in values]
    for member, payload in wrong:
        with pytest.raises(ConfigError) as caught:
            accept(lease.verifier(), signed(payload))
        assert caught.value.field == f"grant.{member}", payload
    for token in ("0", "-7", "7 ", "1e3", str(TOKEN_MAX + 1), "\u0667", "x"):
        with pytest.raises(ConfigError, match="token"):
            accept(lease.verifier(), signed(canonical({**good, "token": token})))


def test_what_is_no_text_of_a_grant_is_named(lease: Ticket) -> None:
    """Another version, another form and too long a text are ConfigErrors that name what is wrong."""
    text = lease.grant().text
    verifier = lease.verifier()
    forms: list[tuple[str, object]] = [
        ("grant", None),
        ("grant", text.encode()),
        ("grant", f"grant1.2026-11.{'A' * TEXT_MAX}.AAAA"),
        ("grant.version", ""),
        ("grant.version", "grant2" + text[6:]),
        ("grant.version", " " + text),
        ("grant.version", "7"),
        ("grant", text + "\n"),
        ("grant", text + "="),
        ("grant", text + ".x"),
        ("grant", text.rpartition(".")[0]),
        ("grant", text.replace("2026-11", "")),
        ("grant", text.replace("2026-11", "k" * 65)),
        ("grant.signature", text + "AA"),
    ]
    for field, wrong in forms:
        with pytest.raises(ConfigError) as caught:
            verifier.read(wrong)  # type: ignore[arg-type]
        assert caught.value.field == field, wrong


def test_a_signature_has_one_spelling(lease: Ticket) -> None:
    """Bits of the last character that carry nothing must be zero: no second text means the same grant."""
    text = lease.grant().text
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(text[-1])
    assert last % 4 == 0
    for spare in (1, 2, 3):
        with pytest.raises(ConfigError, match=r"grant\.signature"):
            accept(lease.verifier(), text[:-1] + alphabet[last + spare])


@pytest.mark.parametrize("skew_s", [-0.1, 3600.1, math.nan, math.inf, None, "1", True])
def test_a_skew_is_stated_in_bounds(skew_s: Any) -> None:
    """A skew that is negative, longer than an hour or no number is a ConfigError."""
    with pytest.raises(ConfigError, match="skew_s"):
        Verifier(KEY, skew_s=skew_s)


@pytest.mark.parametrize("need", [-1.0, math.nan, None, "1"])
def test_a_need_at_the_resource_is_a_number_of_seconds(lease: Ticket, need: Any) -> None:
    """A need that cannot be is Misuse, never a way past the deadline."""
    with pytest.raises(Misuse, match="need"):
        accept(lease.verifier(), lease.grant().text, need=need)


def test_keys_are_exchanged_without_a_gap(lease: Ticket) -> None:
    """A resource that knows both keys takes grants of both, and of one only when it forgets the other."""
    new = HmacKey("2026-12", b"the secret of next month, longer")
    texts = [lease.issuer(key).grant(lease, "rotate", HOST).text for key in (KEY, new)]
    for text in texts:
        assert accept(lease.verifier(KEY, new), text).check() == 7
    with pytest.raises(AuthError, match="2026-11"):
        accept(lease.verifier(new), texts[0])


def test_a_fence_takes_a_grant_for_a_lease(lease: Ticket) -> None:
    """ROW A11: the fence is fed with the verified grant's token, claim and holder, and refuses an older one after a newer."""
    newer = Ticket(token=8, claim="other", holder="replica-2")
    texts = [owner.grant().text for owner in (lease, newer)]
    verifier = lease.verifier()
    connection = sqlite3.connect(":memory:")
    try:
        Fence.create(connection)
        fence = Fence(connection)
        for token, text in zip((7, 8), texts, strict=True):
            with connection:
                assert fence.admit("certs", accept(verifier, text)) == token
        with pytest.raises(StaleToken, match="replica-2") as caught, connection:
            fence.admit("certs", accept(verifier, texts[0]))
        assert (caught.value.token, caught.value.highest) == (7, 8)
        late = accept(verifier, texts[1])
        lease.pass_(10.0)
        with pytest.raises(LeaseSuspended), connection:
            fence.admit("certs", late)
        assert not connection.in_transaction
    finally:
        connection.close()


def test_terms_are_checked_when_they_are_made(lease: Ticket) -> None:
    """A lease of another make whose facts cannot be gets no grant, rather than one that no resource can read."""
    for owner in (Ticket(token=0), Ticket(name=""), Ticket(claim=""), Ticket(holder="a\x00")):
        with pytest.raises(ConfigError):
            owner.grant()
