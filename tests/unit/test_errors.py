"""The errors: one tree split by who must act, readable in one line, and whole after a trip between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

import leasekeeper
from leasekeeper import errors, run_errors, schema_errors
from leasekeeper.errors import (
    AuthError,
    ConfigError,
    FixIt,
    LeasekeeperError,
    LeaseLost,
    LeaseSuspended,
    Misuse,
    NotAcquired,
    OutcomeUnknown,
    OutOfSpace,
    StaleToken,
    StopWork,
    StoreRewound,
    TryLater,
    Unavailable,
)
from leasekeeper.protocol.authority import Loss
from leasekeeper.protocol.keys import Claim
from leasekeeper.run_errors import (
    AnchorSkewed,
    ArgumentsChanged,
    BlobMissing,
    Conflict,
    CorruptState,
    Drift,
    ExportKept,
    IllegalTransition,
    InDoubt,
    InputChanged,
    NotApplied,
    NotSerialisable,
    Quarantined,
    QuotaReserved,
    RecordTooLarge,
    RunFinished,
    RunHalted,
    RunPruned,
    RunRewound,
    RunTooLong,
    SigningKeyMissing,
    StaleCheckpoint,
    StepBusy,
    StepsOpen,
    TransactionTooLarge,
)
from leasekeeper.run_records import Receipt
from leasekeeper.schema_errors import MigrationFailed, SchemaTooNew, SchemaUnknown

ALL = sorted(
    {
        found
        for module in (errors, run_errors, schema_errors)
        for _, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, LeasekeeperError)
    },
    key=lambda found: found.__name__,
)
LOSS = Loss("revoked", 12.5, 3.25)
RECEIPT = Receipt(
    run="wf/id",
    workflow="wf",
    id="id",
    gen=1,
    seq=2,
    kind="conflict",
    step="charge",
    data={"found": 1},
    token=7,
    claim="c",
    holder="h",
    life="a",
    nonce="n",
    namespace_id="b",
    prev="0" * 64,
    at_ms=1,
    hash="1" * 64,
    key_id="",
    signature="",
    stored=b"{}",
)
CLAIM = Claim(name="n", key="leasekeeper/default/lease/n/1", token=7, create_revision=7, mod_revision=7, lease_id=1)

FULL = [
    LeaseLost("it is over", name="n", token=7, reason="revoked", loss=LOSS, in_doubt=True),
    StaleToken("too old", resource="r", token=6, highest=7, holder="h"),
    LeaseSuspended("wait", name="n", token=7, age_s=5.5, remaining_s=4.0, need_s=6.0),
    NotAcquired("taken", name="n", owner=CLAIM, ahead=2, waited_s=1.5),
    Unavailable("no answer", endpoints=("a:1", "b:2"), operation="Txn", detail="refused"),
    OutOfSpace("full", endpoints=("a:1",), operation="Txn", detail="mvcc: database space exceeded"),
    OutcomeUnknown("who knows", operation="epoch bump", detail="timed out"),
    Misuse("do not"),
    ConfigError(field="ttl", value=0, expected="more"),
    AuthError("no", user="u", denied=True, operation="Txn"),
    StoreRewound("back", seen=9, now=4),
    RunHalted("halted", run="wf/id", step="charge", scope="wf", reason="audit", by="ann", at_ms=1),
    InDoubt("who knows", run="wf/id", step="charge", seq=3, why="no key"),
    Quarantined("again", run="wf/id", restarts=5),
    StaleCheckpoint("changed", run="wf/id", name="state", expected=7, found=9),
    QuotaReserved("nearly full", used=9, quota=10, endpoints=("a:1",), operation="Txn", detail="reserved"),
    Conflict("somebody", run="wf/id", step="charge", receipt=RECEIPT),
    Drift("true no more", run="wf/id", step="charge", seq=4),
    ArgumentsChanged("others", run="wf/id", step="charge", recorded="aa", given="bb"),
    InputChanged("another", run="wf/id", recorded="aa", given="bb"),
    CorruptState(where="ck/state", why="digest"),
    SchemaTooNew("newer", schema="OrderState", version=3, reads=2, where="ck/state"),
    SchemaUnknown("no way", schema="OrderState", version=1, oldest=2),
    MigrationFailed("broken", schema="OrderState", version=1, to=2, function="m.f", why="KeyError('a')"),
    SigningKeyMissing("no key", run="wf/id", key_id="k1"),
    BlobMissing("gone", digest="ab" * 32),
    RunRewound("back", run="wf/id", have=3, known=5),
    AnchorSkewed("two tales", anchor="tpm", run="wf/id", seq=5, have="aa", known="bb"),
    NotSerialisable(field="args[0]", value="a set", expected="a list"),
    ExportKept(field="target", value="o.jsonl", expected="another name"),
    RecordTooLarge(what="result", size=70_000, most=65_536),
    RunTooLong("long", run="wf/id", records=10_000, most=10_000),
    TransactionTooLarge("large", size=600_000, most=524_288),
    IllegalTransition("no", name="order", have="paid", wanted="new", legal=("sent",)),
    RunFinished("over", run="wf/id"),
    RunPruned("pruned", run="wf/id"),
    StepBusy("busy", run="wf/id", step="charge"),
    StepsOpen("open", run="wf/id", steps=("charge", "mail")),
]
each_error = pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)


def test_the_tree_says_who_must_act() -> None:
    """Stop, wait, fix; each error has exactly one of these answers."""
    branches = {
        StopWork: {LeaseLost, StaleToken, RunHalted, InDoubt, Quarantined},
        TryLater: {
            *(LeaseSuspended, NotAcquired, Unavailable, OutOfSpace, OutcomeUnknown),
            *(StaleCheckpoint, QuotaReserved),
        },
        FixIt: {
            *(Misuse, ConfigError, AuthError, StoreRewound),
            *(Conflict, Drift, ArgumentsChanged, InputChanged, RunRewound, AnchorSkewed),
            *(CorruptState, SchemaTooNew, SchemaUnknown, MigrationFailed, SigningKeyMissing, BlobMissing),
            *(NotSerialisable, ExportKept, RecordTooLarge, RunTooLong, TransactionTooLarge),
            *(IllegalTransition, RunFinished, RunPruned, StepBusy, StepsOpen),
        },
    }
    leaves = set(ALL) - {LeasekeeperError, *branches}
    assert set().union(*branches.values()) == leaves
    for branch, members in branches.items():
        for leaf in leaves:
            assert issubclass(leaf, branch) == (leaf in members)
    assert OutOfSpace.__base__ is Unavailable
    assert LeasekeeperError.__base__ is BaseException
    assert TryLater.__bases__ == FixIt.__bases__ == (LeasekeeperError, Exception)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """The tree drawn at the head of the module names every error under its parent."""
    assert errors.__doc__ is not None
    parents: list[tuple[int, str]] = []
    drawn: dict[str, str] = {}
    for line in errors.__doc__.splitlines():
        name = line.lstrip("│├└─ ").partition(" ")[0]
        if name not in {found.__name__ for found in ALL}:
            continue
        depth = line.index(name)
        while parents and parents[-1][0] >= depth:
            parents.pop()
        drawn[name] = parents[-1][1] if parents else "BaseException"
        parents.append((depth, name))
    assert drawn == {found.__name__: found.__mro__[1].__name__ for found in ALL}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_default_message_is_the_first_line_of_the_docstring(kind: type[LeasekeeperError]) -> None:
    """An error raised without words still says what it means, in one line."""
    assert kind.__doc__ is not None
    error = kind()
    assert str(error) == error.message == kind.__doc__.splitlines()[0]
    assert str(error)
    assert "\n" not in str(error)


@each_error
def test_an_error_survives_pickle_with_its_attributes(error: LeasekeeperError) -> None:
    """An error crosses a process pool with everything a program may branch on."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (again.args, vars(again)) == (error.args, vars(error))
    assert vars(copy.copy(error)) == vars(error)


def test_every_leaf_is_pickled_above() -> None:
    """A new error must be added to these tests, with all its attributes set."""
    assert {type(error) for error in FULL} == set(ALL) - {LeasekeeperError, StopWork, TryLater, FixIt}
    for error in FULL:
        defaults = vars(type(error)())
        assert all(vars(error)[name] != default for name, default in defaults.items()), type(error)


@each_error
def test_errors_can_be_imported_from_the_package(error: LeasekeeperError) -> None:
    """Each leaf is a public name."""
    assert getattr(leasekeeper, type(error).__name__) is type(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            InDoubt(run="order/42", step="charge"),
            "if it was applied, `leasekeeper runs resolve order/42 charge --applied --evidence TEXT`; if it was not, `leasek",
        ),
        (
            InDoubt(run="order/4 2", step="it's STEP"),
            """`leasekeeper runs resolve 'order/4 2' 'it'"'"'s STEP' --not-applied --evidence TEXT`""",
        ),
        (RunHalted(run="order/42", scope="order"), "`leasekeeper unhalt order`"),
        (
            RunHalted(run="order/42", step="charge", scope="order/*", reason="wrong\nprices", by="ann@ops"),
            "step charge of order/42 was not begun: ann@ops has halted 'order/*', because: wrong prices; to lift it:",
        ),
        (Quarantined(run="order/42"), "`leasekeeper runs explain order/42`"),
        (Conflict(run="order/42", step="charge"), "`leasekeeper runs explain order/42`"),
        (Drift(run="order/42", step="charge"), "`leasekeeper runs explain order/42`; make it hold again, or give its"),
        (Drift(run="order/42", step="charge"), 'effect drift="accept"'),
        (RunRewound(run="order/42"), "`leasekeeper runs verify order/42 --anchor FILE`"),
        (Quarantined(run="order/4  2"), "`leasekeeper runs explain 'order/4  2'`"),
        (Quarantined(run="-rf/42"), "`leasekeeper runs explain -- -rf/42`"),
        (
            InDoubt(run="order/42", step="-rf"),
            "`leasekeeper runs resolve --not-applied --evidence TEXT -- order/42 -rf`",
        ),
        (
            SigningKeyMissing(run="order/42", key_id="orders-2026"),
            "or, where another key signs by now, to the file of that one, and LEASEKEEPER_TRUST_FILE to a file with the",
        ),
        (BlobMissing(digest="ab" * 32), f"blob {'ab' * 32} is missing"),
        (RunFinished(run="order/4\n2"), "'order/4 2' is finished"),
        (
            RecordTooLarge(what="the result of charge", size=70_000, most=65_536),
            "the result of charge has 70000 bytes, 65536",
        ),
        (CorruptState(where="ck/state", why="wrong digest"), "ck/state: wrong digest: put back what was there"),
        (
            CorruptState(where="leasekeeper/shop/run/order/4 2/ck/state", why="wrong digest"),
            "wrong digest: see `leasekeeper runs verify 'order/4 2'`, then put back",
        ),
        (
            CorruptState("it is forged", where="record 5 of order/42"),
            "it is forged; see `leasekeeper runs verify order/42`",
        ),
        (CorruptState("see `leasekeeper halt`", where="record 5 of order/42"), "see `leasekeeper halt`"),
        (CorruptState("line 3 is no JSON", where="line 3"), "line 3 is no JSON"),
        (IllegalTransition(name="order", have="paid", wanted="new"), "Phase order cannot go from paid to new"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_a_run_names_the_command_to_type(error: LeasekeeperError, words: str) -> None:
    """The default message of an error of a run holds the command with the run's own words in it, quoted for a shell."""
    assert words in str(error)
    assert "\n" not in str(error)


def test_not_applied_is_the_users_own_error() -> None:
    """What an effect raises to say that nothing happened is an ordinary exception, outside of the tree, and public."""
    assert issubclass(NotApplied, Exception)
    assert not issubclass(NotApplied, LeasekeeperError)
    assert leasekeeper.NotApplied is NotApplied


def test_a_config_error_names_the_value_and_what_would_be_right() -> None:
    """ConfigError says field, value and expectation, as text and as attributes."""
    error = ConfigError(field="ttl", value=-1, expected="seconds from 1 to 86400")
    assert str(error) == "ttl=-1: expected seconds from 1 to 86400"
    assert (error.field, error.value, error.expected) == ("ttl", -1, "seconds from 1 to 86400")


class Unprintable:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Loud:
    """A value that shows itself over many lines."""

    def __repr__(self) -> str:
        return "line\n" * 500


@pytest.mark.parametrize(
    "value",
    [Unprintable(), Loud(), object(), [1] * 10_000, "x" * 10_000, 10**5000, float("nan"), b"\xff", None],
    ids=lambda value: type(value).__name__,
)
def test_a_config_error_can_hold_anything(value: Any) -> None:
    """Whatever the wrong value is, the error is one line of bounded length, and pickles."""
    error = ConfigError(field="field", value=value, expected="something else")
    assert "\n" not in str(error)
    assert len(str(error)) < 400
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert isinstance(again.value, (str, int, float, type(None)))
