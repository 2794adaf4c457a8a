"""A conformance suite for whoever refuses older owners: `assert_fenced`.

The rule that it tests is that of `leasekeeper.fencing.admits`: a write is accepted if its token is larger than the highest
one that was accepted before, or equal to it and of the same claim; then token and claim are remembered, in one step with the
decision. Each rule below is one way in which a fence that looks right is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leasekeeper.errors import ConfigError, StaleToken
from leasekeeper.fencing import TOKEN_MAX, make_token
from leasekeeper.testing.fence_races import held_writers, many_writers
from leasekeeper.testing.trial import Broken, Target, Trial, Writer

__all__ = ["RULES", "Rule", "assert_fenced"]

# Two neighbours each, where a way to keep or compare numbers begins to fail.
EDGES = (
    (9, 10, "as text, '9' comes after '10'"),
    ((1 << 31) - 1, 1 << 31, "32 bits with a sign end here"),
    ((1 << 32) - 1, 1 << 32, "32 bits end here"),
    ((1 << 53) + 3, (1 << 53) + 4, "a float, and a number in JavaScript, is the same for both"),
    ((1 << 53) + 4, (1 << 53) + 5, "a float, and a number in JavaScript, is the same for both"),
    (TOKEN_MAX - 1, TOKEN_MAX, "the largest token there is"),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a fence, and the trial that shows whether it holds. What breaks ``builds_on`` breaks this one, too."""

    name: str
    text: str
    run: Callable[[Trial], None]
    builds_on: str = ""


def _in_order(trial: Trial) -> None:
    first, second = Writer("first", 7, "a"), Writer("second", 8, "b")
    trial.accepted(first, "nobody has written yet")
    trial.accepted(first, "the same owner may write again")
    trial.accepted(second, "its token is larger")
    trial.accepted(second, "the same owner may write again")


def _older(trial: Trial) -> None:
    older, newer = Writer("older", 7, "a"), Writer("newer", 8, "b")
    trial.accepted(older, "nobody has written yet")
    trial.accepted(newer, "its token is larger")
    trial.refused(older, "a newer owner has written")
    trial.accepted(newer, "it is still the newest owner")


def _never_seen(trial: Trial) -> None:
    trial.accepted(Writer("newest", 10, "c"), "nobody has written yet")
    trial.refused(Writer("oldest", 5, "a"), "a newer owner has written")
    trial.refused(Writer("older", 9, "b"), "a newer owner has written; a write that was refused must change nothing")
    trial.accepted(Writer("newest", 10, "c"), "it is still the newest owner")


def _equal(trial: Trial) -> None:
    one, other = Writer("one", 7, "a"), Writer("other", 7, "b")
    trial.accepted(one, "nobody has written yet")
    trial.refused(other, "the token is equal, but belongs to another claim")
    trial.accepted(one, "the token is equal and of the same claim")


def _replayed(trial: Trial) -> None:
    older, newer = Writer("older", 7, "a"), Writer("newer", 8, "b")
    sent = trial.accepted(older, "nobody has written yet").value
    trial.accepted(newer, "its token is larger")
    trial.refused(older, "it is the very request that was accepted earlier, delivered once more", value=sent)


def _restored(trial: Trial) -> None:
    before = Writer("before", make_token(0, 900_000), "a")
    after = Writer("after", make_token(1, 5), "b")
    trial.accepted(before, "nobody has written yet")
    trial.accepted(after, "etcd was restored: its revision is lower, but its epoch is higher, and so is the token")
    trial.refused(before, "it is from before the restore")
    trial.refused(Writer("ghost", make_token(0, (1 << 44) - 1), "c"), "it is from before the restore")
    trial.accepted(Writer("next", make_token(1, 6), "d"), "its token is larger")


def _edge(smaller: int, larger: int, why: str) -> Callable[[Trial], None]:
    def run(trial: Trial) -> None:
        older, newer = Writer("older", smaller, "a"), Writer("newer", larger, "b")
        trial.accepted(older, f"nobody has written yet ({why})")
        trial.accepted(newer, f"its token is larger ({why})")
        trial.refused(older, f"a newer owner has written ({why})")

    return run


def _reopened(trial: Trial) -> None:
    if trial.target.reopen is None:
        return
    older, newer = Writer("older", 7, "a"), Writer("newer", 8, "b")
    trial.accepted(older, "nobody has written yet")
    trial.accepted(newer, "its token is larger")
    trial.target.reopen()
    trial.refused(older, "a newer owner has written, before the resource was opened anew")
    trial.accepted(newer, "it is still the newest owner")


RULES = (
    Rule("owners in order", "who has the largest token so far may write, as often as he likes", _in_order),
    Rule("older owner", "after a newer owner no older one is accepted", _older),
    Rule("older owner never seen", "a token counts by its size, whether it was seen before or not", _never_seen),
    Rule(
        "equal token of another claim",
        "a token equal to the highest passes only for the claim that it belongs to: after a restore of etcd the same number"
        " can belong to somebody else, so `>=` is wrong",
        _equal,
    ),
    Rule("replayed", "a write that comes twice is judged anew when it comes", _replayed),
    Rule("after a restore", "the whole token counts, its epoch above the revision", _restored),
    *(
        Rule(
            f"numbers near {larger}",
            "tokens are whole numbers of 63 bits, and every bit counts",
            _edge(smaller, larger, why),
        )
        for smaller, larger, why in EDGES
    ),
    Rule("reopened", "the highest token outlives a restart of the resource", _reopened),
    Rule(
        "two at once",
        "deciding, remembering and writing are one step: no newer owner can come in between",
        held_writers,
        builds_on="older owner",
    ),
    Rule("many at once", "the same, with several owners that write as fast as they can", many_writers, "older owner"),
)


def assert_fenced(
    adapter: object,
    *,
    refuses: type[BaseException] | tuple[type[BaseException], ...] = StaleToken,
    leave_out: tuple[str, ...] = (),
) -> None:
    """The resource behind ``adapter`` refuses older owners, whatever they try; takes a second or a few.

    Tries every rule of `RULES` on a resource of its own: older, equal, replayed and concurrent writes, tokens after a
    restore of etcd (higher epoch, lower revision), and numbers at the edges where text, floats and 32 bits fail. Not tried
    is what the adapter's own failure does (a crash between deciding and writing).

    Args:
        adapter: a function ``write(resource, lease, value)``, or an object with such a method. It writes the text
            ``value`` to the resource of that name, which it makes if it is new, and sends what it would send of a real
            lease: ``lease.check()`` or ``lease.token``, ``lease.claim``, ``lease.holder``. It refuses by raising, or by
            returning False. It is called from several threads at once. Two more methods are used where they exist:
            ``read(resource)`` gives what was written last, and shows writes that were refused and yet happened;
            ``reopen()`` closes the resource and opens it anew, and shows a fence that only remembers in memory.
        refuses: what it raises to refuse, beside StaleToken. Anything else that it raises counts as a failure.
        leave_out: names of rules that this resource need not obey; say why beside it.

    Raises:
        AssertionError: names each rule that was broken, with the writes that show it.
        ConfigError: the adapter cannot write, or there is no such rule.
    """
    __tracebackhide__ = True
    target = Target.of(adapter, refuses)
    _check_names(leave_out)
    tried = 0
    findings: list[tuple[Rule, Broken]] = []
    for rule in RULES:
        if rule.name in leave_out or any(broken.name == rule.builds_on for broken, _ in findings):
            continue
        tried += 1
        if (found := _broken(rule, target)) is not None:
            findings.append((rule, found))
    if findings:
        raise AssertionError(_report(target, findings, tried)) from findings[0][1].__cause__


def _broken(rule: Rule, target: Target) -> Broken | None:
    try:
        rule.run(Trial(target, rule.name))
    except Broken as found:
        return found
    return None


def _check_names(names: tuple[str, ...]) -> None:
    known = [rule.name for rule in RULES]
    for name in names:
        if name not in known:
            raise ConfigError(field="leave_out", value=name, expected=f"one of {', '.join(known)}")


def _report(target: Target, findings: list[tuple[Rule, Broken]], tried: int) -> str:
    head = f"{target.name} is not fenced: it breaks {len(findings)} of {tried} rules"
    parts = [f"{rule.name}: {rule.text}\n{found}" for rule, found in findings]
    tail = (
        "A fence accepts a write if its token is larger than the highest one before, or equal to it and of the same claim;"
        " it decides and remembers both in one step with the write (leasekeeper.fencing.admits)."
    )
    return "\n\n".join([head, *parts, tail])
