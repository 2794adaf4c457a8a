"""`runs explain`: one screen, made of what is recorded and of nothing else, that names the step, the cause and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.cli.runs.explaining import Told, explain
from leasekeeper.cli.runs.remedies import KNOWN
from leasekeeper.cli.runs.source import Late
from leasekeeper.cli.runs.words import during
from leasekeeper.errors import LeasekeeperError
from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.halt import Halt
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.meta import meta_body
from leasekeeper.protocol.receipt import read_receipt, seal
from leasekeeper.protocol.run_keys import RunName
from leasekeeper.protocol.run_look import Facts
from leasekeeper.protocol.story import KEPT_MAX, Story
from leasekeeper.records import Claim
from tests.chains import Author, placed
from tests.commands import call

STORIES = Path(__file__).resolve().parents[1] / "stories"
EVIL = "\x1b[31mred\x07 \u202egnp"
OPENED = {"host": "box", "pid": 77, "previous": None, "restarts": 0}
INTENT = {"effect": "charge", "helps": "", "idem": "1f" * 16, "args": "", "attempt": 1}
NAME = RunName("order", "order-42")


def told(*records: tuple[str, str, dict[str, Any]], status: str = "running", **facts: Any) -> Told:
    """An explanation's ground: a run of these records (kind, step, data), behind the one that opened it."""
    author, story = Author(), Story()
    author.write("opened", OPENED)
    for kind, step, data in records:
        author.write(kind, data, step=step)
    for stored in author.stored:
        story.add(read_receipt(stored, "it"))
    head = Head(seq=len(author.stored), hash=author.prev, status=status)  # type: ignore[arg-type]
    known = Facts(name=NAME, revision=9, meta=b"m", head=b"h", now=head)
    verdict = verify_chain(placed(author.stored), head=(head.seq, head.hash))
    return Told(story, replace(known, **facts), verdict)


def text(ground: Told) -> str:
    """The whole screen."""
    return "\n".join(explain(ground))


# ---------------------------------------------------------------- golden


@pytest.mark.checkout
def test_a_killed_run_is_told_as_ever() -> None:
    """B3: of a run that kill -9 ended in a step, the screen is just this one: the step, the cause, who held it, what to type."""
    done = call("runs", "explain", "--file", str(STORIES / "killed_run.jsonl"), endpoint="127.0.0.1:9")
    assert (done.code, done.err) == (0, "")
    assert done.out == (STORIES / "killed_run.txt").read_text()
    assert len(done.out.splitlines()) <= 40


@pytest.mark.checkout
def test_the_same_records_give_the_same_text() -> None:
    """Nothing in it depends on the moment or the machine: twice the same."""
    words = ("runs", "explain", "--file", str(STORIES / "killed_run.jsonl"))
    assert call(*words).out == call(*words, env={"TZ": "Asia/Tokyo", "COLUMNS": "60"}).out


# ---------------------------------------------------------------- what is told


def test_a_step_in_doubt_has_its_cause_and_its_commands() -> None:
    """B3: the step, why nobody can tell, what it raised, its key at the callee, and both commands to copy."""
    ground = told(
        ("intent", "charge", INTENT),
        ("raised", "charge", {"applied": None, "intent": 2, "type": "ConnectionError", "text": "reset by peer"}),
        ("in_doubt", "charge", {"args": "", "intent": 2, "why": "there is no preflight to ask"}),
        status="in_doubt",
    )
    shown = text(ground)
    assert shown.startswith("run order/order-42 is in doubt: nobody can tell whether 'charge' happened")
    assert "record 4, in doubt: there is no preflight to ask" in shown
    assert "record 3: it raised ConnectionError: reset by peer" in shown
    assert "leasekeeper runs resolve order/order-42 charge --applied --evidence 'WHAT YOU SAW'" in shown
    assert "leasekeeper runs resolve order/order-42 charge --not-applied --evidence 'WHAT YOU SAW'" in shown


@pytest.mark.parametrize(
    ("helps", "memo", "expected"),
    [
        ("fences", False, "otherwise it is in doubt, and a person decides"),
        ("at_most_once dedupes", False, "otherwise it is in doubt, and a person decides"),
        ("dedupes", False, "called with the same key while the callee remembers that"),
        ("probe", False, "by what its preflight sees"),
        ("", True, "will be asked again"),
    ],
)
def test_an_intent_without_an_outcome_and_nobody_there(helps: str, memo: bool, expected: str) -> None:
    """A killed run that nobody has taken over: the step is named, and what the next life will do about it."""
    seen = {"applied": False, "consistency": "eventual", "value": None}
    shown = text(told(("before" if memo else "intent", "charge", {**INTENT, "helps": helps, "pre": seen})))
    assert "is not finished, and nobody owns it" in shown
    assert "left no word of its end: killed, frozen, or cut off" in shown
    assert f"'charge': {expected}" in shown or expected in shown
    assert "runs resolve" not in shown


@pytest.mark.parametrize("helps", ["", "fences", "at_most_once", "at_most_once dedupes"])
def test_a_start_that_can_only_end_in_doubt_is_not_the_first_advice(helps: str) -> None:
    """Without a preflight, and not to be called again: both commands are there before anybody starts a program."""
    steps_open = ("failed", "", {"type": "StepsOpen", "text": "run order/order-42 is not finished"})
    intent = ("intent", "charge", {**INTENT, "helps": helps, "pre": None})
    shown = text(told(intent, steps_open))
    assert shown.startswith("run order/order-42 is not finished: its last life ended with StepsOpen\n")
    applied = "leasekeeper runs resolve order/order-42 charge --applied --evidence 'WHAT YOU SAW'"
    start = shown.index("start the program again")
    assert shown.index("swallowed a step's error") < shown.index(applied) < start
    assert shown.index("charge --not-applied --evidence 'WHAT YOU SAW'") < start
    owner = Claim("run/order/order-42", "k", 7, 7, 7, 1, holder="worker-1")
    assert "runs resolve" not in text(told(intent, owner=owner)), "it is refused while the run has an owner"


@pytest.mark.parametrize(
    ("kind", "first", "command"),
    [
        ("CorruptState", "put just that back from a backup", "leasekeeper runs verify order/order-42\n"),
        ("MigrationFailed", "mend the migration", ""),
        ("SchemaTooNew", "deploy that one", ""),
        ("SigningKeyMissing", "give the program that key", ""),
        ("ConfigError", "mend its code", ""),
        ("NotSerialisable", "mend its code", ""),
        ("QuotaReserved", "prune finished runs", ""),
        ("RunRewound", "or give them up for lost", "leasekeeper runs verify order/order-42 --anchor FILE\n"),
        ("KeyError", "if the program or what it was given is at fault", ""),
    ],
)
def test_what_ended_the_last_life_is_mended_first(kind: str, first: str, command: str) -> None:
    """Whatever ends each life again is named, with what to do about it, before anybody is told to start the program."""
    failed = ("failed", "", {"type": kind, "text": "because"})
    shown = text(told(failed))
    assert kind in shown.splitlines()[0]
    assert shown.index(first) < shown.index("start the program again")
    assert command in shown
    after = text(told(failed, ("opened", "", OPENED)))
    assert first not in after, "the last life has not met it"


def test_every_error_has_a_word_or_is_known_to_pass() -> None:
    """Each error of leasekeeper's own is told what to do about, or is one that passes; none is forgotten."""

    def leaves(kind: type[BaseException]) -> list[type[BaseException]]:
        return [leaf for sub in kind.__subclasses__() for leaf in leaves(sub)] or [kind]

    tree = {f"leasekeeper.{name}" for name in ("errors", "run_errors", "schema_errors")}
    own = {each.__name__ for each in leaves(LeasekeeperError) if each.__module__ in tree}
    assert own <= KNOWN, sorted(own - KNOWN)


def test_the_key_that_signs_is_needed_for_the_next_start() -> None:
    """Of a run whose records are signed, the start that goes on has to have its key: which one is said."""
    ground = told()
    assert ground.facts.now is not None
    signed = replace(ground, facts=replace(ground.facts, now=ground.facts.now._replace(key_id="k1")))
    assert "start the program again, on any host, with signing key k1 as before" in text(signed)
    assert "signing key" not in text(ground)


@pytest.mark.parametrize(
    ("kind", "helps", "expected"),
    [
        ("intent", "dedupes", "its idempotency key, by which the callee knows it: " + "1f" * 16),
        ("intent", "probe", "the idempotency key that it would send, if the program sends one: " + "1f" * 16),
        ("intent", "", ""),
        ("before", "", ""),
        ("before", "dedupes", ""),
    ],
)
def test_nobody_is_sent_to_look_for_a_key_that_was_never_sent(kind: str, helps: str, expected: str) -> None:
    """A callable that declares nothing gets its arguments alone, and a memo only asks: no key of theirs is told."""
    shown = text(told((kind, "charge", {**INTENT, "helps": helps})))
    assert expected in shown if expected else "1f" * 16 not in shown


def test_a_run_with_an_owner_is_left_alone() -> None:
    """Somebody is at it: who, and how to look at the claim; no command that would cut in."""
    owner = Claim("run/order/order-42", "k", 7, 7, 7, 1, holder="worker-1")
    shown = text(told(("intent", "charge", INTENT), owner=owner))
    assert "is running: worker-1 owns it" in shown
    assert "life 1, which began it, holds the run still" in shown
    assert "leasekeeper show run/order/order-42" in shown


def test_a_quarantined_run_with_a_step_left_open() -> None:
    """Of a step that no life asked for, since its error was swallowed, a person can say what became of it; else it ends alike."""
    raised = ("raised", "charge", {"applied": None, "intent": 2, "type": "OSError", "text": "no answer"})
    failed = ("failed", "", {"type": "StepsOpen", "text": "how 'charge' ended nobody knows"})
    put_aside = ("quarantined", "", {"restarts": 1})
    shown = text(told(("intent", "charge", INTENT), raised, failed, put_aside, status="quarantined"))
    assert "leasekeeper runs resolve order/order-42 --lift-quarantine" in shown
    assert "no program can tell whether 'charge' was applied" in shown
    assert "leasekeeper runs resolve order/order-42 charge --not-applied --evidence 'WHAT YOU SAW'" in shown


def test_a_finished_run_with_an_open_memo() -> None:
    """A memo that was given up has done no harm: there is nothing to say of it."""
    memo = text(told(("before", "plan", INTENT), ("finished", "", {}), status="finished"))
    assert memo.startswith("run order/order-42 is finished\n")
    assert "runs resolve" not in memo


def test_halts_come_first_in_what_to_do() -> None:
    """B15: a run that is halted says by what, by whom and why, and how to lift it, quoted for a shell."""
    halt = Halt("order/*", "wrong prices", "ops", 1_700_000_000_000, 5)
    shown = text(told(("intent", "charge", INTENT), halts=(halt,)))
    assert "order/* is halted since 2023-11-14T22:13:20.000Z by ops: wrong prices" in shown
    assert "leasekeeper unhalt 'order/*'" in shown


def test_a_quarantined_run() -> None:
    """How many lives in a row got nowhere, their errors, and the command that lets it be tried again."""
    shown = text(
        told(
            ("failed", "", {"type": "KeyError", "text": "'cents'"}),
            ("quarantined", "", {"restarts": 11}),
            status="quarantined",
        )
    )
    assert "is quarantined" in shown
    assert "the block around the steps: KeyError: 'cents'" in shown
    assert "it was begun again 0 times without a step done" in shown
    assert "(see above, and their logs)" in shown
    assert "runs resolve order/order-42 --lift-quarantine --evidence" in shown


def test_a_quarantined_run_whose_lives_were_killed() -> None:
    """No section is pointed to that is not there: lives that were killed leave no error."""
    shown = text(told(("opened", "", {**OPENED, "restarts": 4}), ("quarantined", "", {}), status="quarantined"))
    assert "ERRORS" not in shown
    assert "they left no error here: see the logs of program and host" in shown
    assert "it was begun again 4 times without a step done" in shown


def test_a_life_that_only_began() -> None:
    """A run begun for others to do has a first life of one record: it is not told as killed."""
    shown = text(told(("opened", "", OPENED)))
    assert "record 1: no word of its end: it began the run for others to do, or was killed" in shown
    assert "record 2: no word of its end\n" in shown


def test_the_time_of_a_life_goes_forward() -> None:
    """Both ends of a life are told to the millisecond: the second never reads as if it were before the first."""
    assert during(1_700_000_000_974, 1_700_000_000_985) == "2023-11-14T22:13:20.974Z to 22:13:20.985Z"


def test_an_error_is_told_once() -> None:
    """One that leaves step and block, and comes again in each life, stands there once, with the records that have it."""
    long = "x" * 200
    ground = told(
        ("intent", "charge", {**INTENT, "helps": "dedupes"}),
        ("raised", "charge", {"applied": None, "type": "OSError", "text": long}),
        ("failed", "", {"type": "OSError", "text": long}),
    )
    shown = text(ground)
    assert shown.count(long) == 1
    assert "life 1, which began it, failed: OSError\n" in shown
    lives = [part for _ in range(5) for part in (("failed", "", {"type": "E", "text": long}), ("opened", "", OPENED))]
    again = text(told(*lives))
    assert again.count(long) == 1
    assert "the same in 4 more records: 4, 6, 8, 10" in again


def test_the_input_is_told() -> None:
    """What the run was begun with, cut to one line that is safe for a terminal; damage is named, and none is no line."""
    body = {"at": 1, "by": "w", "gen": 1, "id": "order-42", "life": "1f", "v": 1, "wf": "order"}
    meta = seal(meta_body(body, canonical({"order": "\u202e" + "o" * 500}, "input")), None)
    line = next(line for line in explain(told(meta=meta)) if "its input" in line)
    assert '{"order":"\\u202eooo' in line
    assert line.isprintable()
    assert len(line) < 400
    assert "its input" not in text(told(meta=seal(meta_body(body, None), None)))
    assert "its input: it cannot be read: " in text(told(meta=b"{}"))


def test_a_set_back_run_that_was_given_up() -> None:
    """What an operator accepted as lost is told as that, up to which record; only a lifted quarantine may be tried again."""
    rewound = [{"hash": "0" * 64, "seq": 5}, {"hash": "1" * 64, "seq": 8}]
    shown = text(told(("resolved", "", {"applied": False, "evidence": "it is gone", "rewound": rewound})))
    assert 'what was remembered outside of etcd, up to record 8, is given up for lost: "it is gone"' in shown
    assert "it may be tried again" not in shown
    lifted = text(told(("resolved", "", {"applied": False, "evidence": "mended", "rewound": []})))
    assert 'it may be tried again: "mended"' in lifted


def test_a_conflict() -> None:
    """Which step, that this run did not begin it, what the preflight saw; nobody is asked whether it was applied."""
    seen = {"applied": True, "as_of": None, "consistency": "strong", "value": {"id": "ch_7"}}
    shown = text(told(("conflict", "charge", {"args": "", "pre": seen})))
    assert shown.startswith("run order/order-42 stopped: somebody else had applied 'charge'")
    assert "step 'charge', which this run did not begin:" in shown
    assert 'its preflight saw: {"id": "ch_7"}' in shown
    assert "find out who applied 'charge'" in shown
    assert "whether 'charge' was applied" not in shown
    failed = ("failed", "", {"type": "Conflict", "text": "What step charge would do was done"})
    assert "ERRORS" not in text(told(("conflict", "charge", {"pre": seen}), failed))


def test_a_conflict_and_a_drift() -> None:
    """What somebody else has done, and what does not hold any more, are told with their records."""
    shown = text(
        told(("conflict", "charge", {"args": "", "pre": None}), ("drift", "mail", {"accepted": False, "outcome": 2}))
    )
    assert "somebody else had applied it" in shown
    assert "record 3: what step 'mail' did does not hold any more" in shown
    assert "runs resolve order/order-42 charge --applied" in shown


def test_ways_on_from_a_drift() -> None:
    """What Drift sends people here for: that the world can be mended or the drift accepted, and that the program goes on then."""
    drift = {"accepted": False, "outcome": 2}
    shown = text(told(("outcome", "mail", {}), ("drift", "mail", drift)))
    assert shown.startswith("run order/order-42 stopped: what 'mail' did does not hold any more")
    assert "make what 'mail' did hold again, or, if that is as it should be, have its code say so" in shown
    assert 'verify="recorded"' in shown
    assert shown.index("drift=") < shown.index("start the program again")
    accepted = text(told(("outcome", "mail", {}), ("drift", "mail", {**drift, "accepted": True})))
    assert "hold again" not in accepted
    mended = text(told(("outcome", "mail", {}), ("drift", "mail", drift), ("opened", "", OPENED)))
    assert "hold again" not in mended, "the last life has met none"
    finished = text(told(("outcome", "mail", {}), ("drift", "mail", drift), ("finished", "", {}), status="finished"))
    for past in (mended, finished):
        assert "record 3: what step 'mail' did did not hold at that time" in past
        assert "any more" not in past


def test_late_evidence_is_a_hint() -> None:
    """What came too late is shown under words that say what it is worth; what of it cannot be read is said."""
    author = Author()
    late = read_receipt(author.write("outcome", {"result": {"id": 7}}, step="charge", seq=2), "it")
    ground = replace(told(("intent", "charge", INTENT)), lates=(Late(2, late), Late(3, None, "it is no receipt")))
    shown = text(ground)
    assert "EVIDENCE THAT CAME TOO LATE (a hint: nothing follows from it)" in shown
    assert 'outcome: the result {"id": 7}' in shown
    assert "about record 3: it cannot be read: it is no receipt" in shown


def test_partial_notes_are_shown_and_not_used() -> None:
    """B22: what was noted on the way is told as a note; the step stays open, whatever the note says."""
    notes = [
        ("note", "ask", {"intent": 2, "n": n, "partial": "The answer is 42"[: 8 * n], "size": 8 * n}) for n in (1, 2)
    ]
    ground = told(("before", "ask", INTENT), *notes)
    shown = text(ground)
    assert "NOTES (never a result)" in shown
    assert "step 'ask': it had 16 characters by then, which end in \"The answer is 42\"" in shown
    assert shown.count("characters by then") == 1
    assert ground.story.steps["ask"].state == "intent"
    done = told(("before", "ask", INTENT), *notes, ("outcome", "ask", {"result": "42"}))
    assert "NOTES" not in text(done)


def test_an_operators_word_is_told() -> None:
    """Who said what about a step, on what evidence."""
    shown = text(
        told(("intent", "charge", INTENT), ("resolved", "charge", {"applied": True, "evidence": "the bank's list"}))
    )
    assert "step 'charge' was applied: \"the bank's list\"" in shown
    assert "done: 1 step: charge" in shown


def test_a_step_without_a_result() -> None:
    """A step whose result could not be recorded is named, with the reason and the command that gives it one."""
    refused = ("outcome", "charge", {"refused": {"kind": "type", "why": "a set is no JSON"}})
    shown = text(told(("intent", "charge", INTENT), refused))
    assert "step 'charge' is done, and record 3 has no result: a set is no JSON" in shown
    assert "leasekeeper runs resolve order/order-42 charge --applied --result JSON --evidence 'WHAT YOU SAW'" in shown
    assert "start the program again" in shown
    word = ("resolved", "charge", {"applied": True, "evidence": "the bank's list", "instead": 3, "result": 7})
    after = text(told(("intent", "charge", INTENT), refused, word))
    assert "no result" not in after
    failed = ("failed", "", {"type": "NotSerialisable", "text": "step 'charge' is done: a set is no JSON; catch this"})
    stopped = text(told(("intent", "charge", INTENT), refused, failed))
    assert stopped.count("a set is no JSON") == 1
    assert "first of all" not in stopped
    assert "runs resolve" not in after


def test_records_that_cannot_be_trusted_come_before_all() -> None:
    """A5: where the chain is broken no resolve is offered; the record is named, and how to look further."""
    ground = told(("intent", "charge", INTENT), ("in_doubt", "charge", {"why": "x"}))
    author = Author()
    author.write("opened", OPENED)
    broken = replace(ground, verdict=verify_chain(placed(author.stored), head=(3, "0" * 64)))
    shown = text(broken)
    assert "cannot be trusted: its records are not what was written" in shown
    assert "record 2 was cut off" in shown
    assert "runs resolve" not in shown
    assert "leasekeeper runs verify order/order-42 --keys FILE --anchor FILE --export FILE" in shown


def test_nothing_recorded_and_pruned() -> None:
    """A run that is not there, and one that was, are told apart."""
    none = Told(Story(), Facts(name=NAME, revision=1), verify_chain([]))
    assert "nothing is recorded of it" in text(none)
    assert "it may have been lost" in text(none)
    assert "leasekeeper runs verify order/order-42 --anchor FILE" in text(none)
    assert "was pruned" in text(replace(none, facts=replace(none.facts, tomb=b"t")))


# ---------------------------------------------------------------- what cannot deceive it


def test_nothing_that_was_stored_acts_on_a_terminal() -> None:
    """Escapes, bells and marks of direction in names, errors, reasons and results show as escapes."""
    halt = Halt(f"order/{EVIL}*", EVIL, EVIL, 0, 5)
    ground = told(
        ("intent", EVIL, {**INTENT, "effect": EVIL, "helps": EVIL, "idem": EVIL}),
        ("raised", EVIL, {"applied": None, "type": EVIL, "text": EVIL}),
        ("in_doubt", EVIL, {"why": EVIL}),
        ("note", "", {"x": EVIL}),
        ("resolved", EVIL, {"applied": True, "evidence": EVIL}),
        ("failed", "", {"type": EVIL, "text": EVIL}),
        halts=(halt,),
    )
    for line in explain(ground):
        assert line.isprintable(), line


@pytest.mark.parametrize("data", [{}, {"why": 7}, {"helps": [], "effect": None, "idem": {}}, {"type": 1, "text": []}])
@pytest.mark.parametrize(
    "kind",
    ["opened", "intent", "outcome", "raised", "conflict", "in_doubt", "resolved", "failed", "quarantined", "drift"],
)
def test_odd_records_do_not_stop_it(kind: str, data: dict[str, Any]) -> None:
    """Records that lack what their kind has, or have it in another form, are passed over: the rest is told."""
    shown = text(told(("intent", "charge", INTENT), (kind, "odd", data)))
    assert "'charge'" in shown


def test_it_stays_one_screen() -> None:
    """However many lives, steps and errors there were, it has an end, and says how much it leaves out."""
    many: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(200):
        many.append(("opened", "", {**OPENED, "previous": {"life": "x", "token": "7"}}))
        many.append(("intent", f"step-{number}", INTENT))
        many.append(("raised", f"step-{number}", {"applied": None, "type": "E", "text": "x"}))
        many.append(("in_doubt", f"step-{number}", {"why": "x"}))
        many.append(("note", "", {"n": number}))
    ground = told(*many)
    lines = explain(ground)
    assert len(lines) <= 75
    assert any("195 more" in line for line in lines)
    assert len(ground.story.errors) == KEPT_MAX


def test_names_that_look_like_options() -> None:
    """A run or step that begins with a dash stands where it cannot be taken for an option."""
    ground = told(("intent", "-rf", INTENT), ("in_doubt", "-rf", {"why": "x"}))
    assert "runs resolve --applied --evidence 'WHAT YOU SAW' -- order/order-42 -rf" in text(ground)
