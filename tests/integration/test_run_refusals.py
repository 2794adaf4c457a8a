"""What a run refuses, with which error, and that nothing was written or called; what is large, odd, or too much."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import (
    ArgumentsChanged,
    AsyncKeeper,
    BlobMissing,
    ConfigError,
    Conflict,
    InDoubt,
    InputChanged,
    Keeper,
    LeaseLost,
    Misuse,
    NotApplied,
    NotSerialisable,
    Observed,
    QuotaReserved,
    RecordTooLarge,
    RunFinished,
    RunHalted,
    RunTooLong,
    SigningKeyMissing,
    effect,
)
from leasekeeper.protocol import limits
from leasekeeper.protocol.outcome import RESULT_INLINE_MAX
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.runs.effect import Step
from leasekeeper.signing import HmacKey
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd

ODD = [
    "a/b",
    "a%2Fb",
    "%",
    "../x",
    "ключ",
    "🔑",
    "a b",
    "step/key",
    "r/000000000001",
    ".",
    "*",
    'q"uote',
    "back\\slash",
]


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of this test."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


def ends_with(error: type[BaseException], match: str | None = None) -> AbstractContextManager[Any, bool]:
    """Around the life of a run: how it ends."""
    return pytest.raises(error, match=match)


class Effect:
    """An effect that counts."""

    def __init__(self, result: Any = 1) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.result = result

    def __call__(self, *args: Any) -> Any:
        """Do it."""
        self.calls.append(args)
        return self.result


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", "\x00", "\ud800", None, 7, b"bytes"])
def test_a_key_that_can_be_none(keeper: Keeper, raw: RawEtcd, bad: Any) -> None:
    """A step's, state's or phase's key that can be none is ConfigError, which names it; nothing is sent or called."""
    made = Effect()
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        uses: list[Callable[[], Any]] = [
            lambda: run.do(bad, made),
            lambda: run.memo(bad, made),
            lambda: run.checkpoint(bad, dict),
            lambda: run.phase("p", {bad: []}),
        ]
        for use in uses:
            with pytest.raises(ConfigError):
                use()
        assert raw.revision() == revision
    assert made.calls == []


@pytest.mark.parametrize("part", ["workflow", "id"])
@pytest.mark.parametrize("bad", ["", "x" * 101, "/" * 34, "\n", "\ud800", None, 7])
def test_a_run_that_can_have_no_such_name(keeper: Keeper, bad: Any, part: str) -> None:
    """A workflow or id that cannot be spelled in a lease's name is refused before anything is asked of etcd."""
    names: dict[str, Any] = {"workflow": "order", "id": "1", part: bad}
    with pytest.raises(ConfigError):
        keeper.run(names["workflow"], id=names["id"])


def test_odd_keys_are_just_keys(keeper: Keeper) -> None:
    """Keys with "/", "%" and whatever else, up to 255 characters, are told apart, listed as given, and found again."""
    keys = [*ODD, "x" * 255, "/" * 255]
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        for number, key in enumerate(keys):
            assert run.do(key, lambda number=number: number) == number
            run.checkpoint(key, dict).commit(number=number)
        assert {step.key for step in run.steps()} == set(keys)
        raise KeyError
    with keeper.run("order", id="1", signer=None) as run:
        for number, key in enumerate(keys):
            assert run.do(key, lambda: -1) == number
            assert run.checkpoint(key, dict).value == {"number": number}


def test_no_run_reaches_into_another(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """Runs whose names hold "/" keep to themselves: nothing of one is under the keys of another, nor is it seen there."""
    names = [
        ("a", "b"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a", "b/step/s"),
        ("a", "b%2Fc"),
        ("a%2Fb", "c"),
        ("a", "b/ck"),
        *(("a", odd) for odd in ODD),
    ]
    for number, (workflow, name) in enumerate(names):
        with keeper.run(workflow, id=name, signer=None, input=number) as run:
            run.do("s", lambda number=number: number)
            assert [step.key for step in run.steps()] == ["s"]
    for number, (workflow, name) in enumerate(names):
        with keeper.run(workflow, id=name, signer=None) as run:
            assert run.input == number
            assert run.do("s", lambda: -1) == number
    roots = {
        key.key.removeprefix(f"leasekeeper/{namespace}/run/").rsplit("/", 1)[0]
        for key in raw.keys(f"leasekeeper/{namespace}/run/")
        if key.key.endswith("/head")
    }
    assert len(roots) == len(set(names))
    assert all(root.count("/") == 1 for root in roots)


def test_halts_and_resolve_name_runs_as_they_are_written(keeper: Keeper) -> None:
    """A run with "/" in its id is named workflow/id with %2F for what stands inside; anything else is refused, saying so."""
    with keeper.run("order", id="a/b", signer=None) as run:
        assert run.run == "order/a%2Fb"
    for bad in ("order/a/b", "order", "/x", "x/", "", 7, None):
        with pytest.raises(ConfigError, match="workflow/id"):
            keeper.resolve(bad, "s", applied=True, evidence="x")  # type: ignore[arg-type]
    for scope in ("", "a/b/c", "a*b", "**", "order", 7, "x\n*"):
        with pytest.raises(ConfigError):
            keeper.halt(scope)  # type: ignore[arg-type]


# ---------------------------------------------------------------- arguments, input, results


@pytest.mark.parametrize(
    "bad", [object(), {1, 2}, b"bytes", float("nan"), float("inf"), {1: 2}, "\ud800", [[object()]], 10**700]
)
def test_arguments_that_are_no_json(keeper: Keeper, raw: RawEtcd, bad: object) -> None:
    """Arguments, questions and inputs that are no JSON: NotSerialisable, which names the part; nothing is recorded or called."""
    made = Effect()
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        uses: list[Callable[[], Any]] = [
            lambda: run.do("s", made, 1, bad),
            lambda: run.memo("s", made, bad),
            lambda: run.memo("s", made, about={"x": bad}),
        ]
        for use in uses:
            with pytest.raises(ConfigError) as told:
                use()
            assert told.value.field
        assert raw.revision() == revision
    assert made.calls == []
    with pytest.raises(NotSerialisable):
        keeper.run("order", id="2", input=bad)


def test_an_input_that_is_too_large(keeper: Keeper) -> None:
    """An input above what a record holds is refused before anything is sent."""
    with pytest.raises((RecordTooLarge, NotSerialisable)):
        keeper.run("order", id="1", input="x" * 70_000)


def test_other_input(keeper: Keeper) -> None:
    """C23: a run is resumed with the input that it was begun with, or with none; other input is InputChanged."""
    for give, expected in (({"input": {"a": 1}}, {"a": 1}), ({}, {"a": 1}), ({"input": {"a": 1}}, {"a": 1})):
        with ends_with(KeyError), keeper.run("order", id="1", signer=None, **give) as run:  # type: ignore[arg-type]
            assert run.input == expected
            raise KeyError
    others: list[object] = [{"a": 2}, [1], "x", 0, {}]
    for other in others:
        with ends_with(InputChanged), keeper.run("order", id="1", signer=None, input=other):
            pass


def test_other_arguments(keeper: Keeper) -> None:
    """C23: a key with other arguments, or more or fewer of them, is ArgumentsChanged; the same in another spelling is not."""
    made = Effect()
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made, {"a": 1})
        raise KeyError
    with keeper.run("order", id="1", signer=None) as run:
        uses: list[Callable[[], Any]] = [
            lambda: run.do("s", made, {"a": 2}),
            lambda: run.do("s", made),
            lambda: run.do("s", made, {"a": 1}, None),
        ]
        for use in uses:
            with pytest.raises(ArgumentsChanged):
                use()
        assert run.do("s", made, {"a": 1.0}) == 1
    assert len(made.calls) == 1


@pytest.mark.parametrize("result", [object(), {1, 2}, b"x", float("nan"), [object()]])
def test_a_result_that_is_no_json(keeper: Keeper, result: object) -> None:
    """The effect has happened, so the step is done, in every life; who asks is told why there is no result."""
    made = Effect(result)
    for _ in range(2):
        with ends_with(NotSerialisable, match="the step is done"), keeper.run("order", id="1", signer=None) as run:
            try:
                run.do("s", made)
            finally:
                assert [step.state for step in run.steps()] == ["done"]
    assert len(made.calls) == 1


def test_an_effect_that_says_that_it_returns_no_json(keeper: Keeper, raw: RawEtcd) -> None:
    """An effect that is annotated to return bytes is refused before it is called."""

    def bytes_() -> bytes:
        raise AssertionError("it was called")

    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        with pytest.raises(NotSerialisable):
            run.do("s", bytes_)
        assert raw.revision() == revision


class Bank:
    """A callee whose calls are methods."""

    def charge(self, order: str, cents: int = 1) -> str:
        """One order."""
        return f"{order}: {cents}"


@effect()
def with_step(step: Step, order: str) -> str:
    """An effect of one argument beside the step."""
    return order


@effect()
def without_step(order: str) -> str:
    """An effect whose author forgot the step."""
    return order


@pytest.mark.parametrize(
    ("made", "args"),
    [
        (lambda order: order, ()),
        (lambda: 1, ("o",)),
        (Bank().charge, ()),
        (Bank().charge, ("o", 1, 2)),
        (with_step, ()),
        (without_step, ("o",)),
    ],
)
def test_an_effect_that_cannot_take_its_arguments(
    keeper: Keeper, raw: RawEtcd, made: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """A call that cannot be made is refused before the intent: nothing is in doubt because of a slip of the pen."""
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        with pytest.raises(Misuse, match="is given"):
            run.do("s", made, *args)
        assert raw.revision() == revision
        assert run.do("s", Bank().charge, "o") == "o: 1"
        assert run.do("t", lambda *words: list(words), 1, 2, 3) == [1, 2, 3]
        assert run.do("u", with_step, "o") == "o"


@pytest.mark.parametrize("where", ["etcd", "directory"])
@pytest.mark.parametrize(
    "size", [RESULT_INLINE_MAX - 2, RESULT_INLINE_MAX - 1, 256 * 1024 - 2, 256 * 1024 - 1, 1_500_000]
)
def test_large_results(keeper: Keeper, raw: RawEtcd, namespace: str, tmp_path: Path, size: int, where: str) -> None:
    """A result larger than a record holds comes back whole, from pieces or a directory; one that fits stands in its record."""
    blobs = DirectoryBlobs(tmp_path) if where == "directory" else None
    made = Effect("x" * size)
    for life in range(2):
        with ends_with(KeyError), keeper.run("order", id="1", signer=None, blobs=blobs) as run:
            assert run.do("s", made) == "x" * size
            raise KeyError(life)
    assert len(made.calls) == 1
    pieces = raw.keys(f"leasekeeper/{namespace}/run/order/1/blob/")
    inline = size + 2 <= RESULT_INLINE_MAX
    assert len(pieces) == (0 if inline or blobs else -(-(size + 2) // (256 * 1024)))
    assert bool(list(tmp_path.iterdir())) == (where == "directory" and not inline)


def test_a_step_under_way_when_the_run_is_left(keeper: Keeper) -> None:
    """What its thread is told is that the run's lease was given back here, not that somebody else has taken the key away."""
    begun, left = threading.Event(), threading.Event()
    told: list[tuple[str, object]] = []

    def slow() -> None:
        begun.set()
        left.wait(10)

    def aside() -> None:
        try:
            run.do("slow", slow)
        except LeaseLost as lost:
            told.append((lost.reason, lost.loss))

    thread = threading.Thread(target=aside)
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        thread.start()
        assert begun.wait(10)
        raise KeyError
    left.set()
    thread.join(10)
    assert told == [("released", None)]


def test_a_result_in_a_store_that_was_not_given_again(keeper: Keeper, tmp_path: Path) -> None:
    """A life without the blob store of the one before is told to give it: nothing was damaged, and nothing is called."""
    made = Effect("x" * 1_500_000)
    with ends_with(KeyError), keeper.run("order", id="1", signer=None, blobs=DirectoryBlobs(tmp_path)) as run:
        run.do("s", made)
        raise KeyError
    (blob,) = (file.name for file in tmp_path.rglob("*") if file.is_file())
    with ends_with(BlobMissing, match=f"blobs=.*{blob}"), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made)
    assert len(made.calls) == 1


def test_a_result_that_is_too_large_for_everything(keeper: Keeper) -> None:
    """More than 8 MiB: the step is done, in every life, and who asks is told the bound."""
    made = Effect("x" * (8 * 1024 * 1024))
    for _ in range(2):
        with ends_with(RecordTooLarge, match="the step is done"), keeper.run("order", id="1", signer=None) as run:
            run.do("s", made)
    assert len(made.calls) == 1


def test_the_same_value_at_first_and_ever_after(keeper: Keeper) -> None:
    """B2: what a step returns is decoded from what is recorded, also the first time."""
    made = Effect({"tuple": (1, 2), "big": 2**60, "float": 1.0, "text": "ä"})
    found = []
    for _ in range(2):
        with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
            found.append(run.do("s", made))
            found.append(run.do("s", made))
            raise KeyError
    assert found == [{"tuple": [1, 2], "big": str(2**60), "float": 1, "text": "ä"}] * 4


# ---------------------------------------------------------------- the effect itself


def test_a_coroutine_function_under_threads(keeper: Keeper, raw: RawEtcd) -> None:
    """An effect, a preflight or a verify that is a coroutine function is refused by a Keeper before anything is recorded."""

    async def later(*_: object) -> None:
        raise AssertionError("it ran")

    class Later:
        async def __call__(self) -> None:
            raise AssertionError("it ran")

    asks, verifies = effect(lambda step: 1), effect(lambda step: 1)
    asks.preflight(later)
    verifies.verify(later)
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        for given in (later, Later(), effect(later), asks, verifies):
            with pytest.raises(Misuse, match="AsyncKeeper"):
                run.do("s", given)
        assert raw.revision() == revision
        with pytest.raises(Misuse, match="AsyncKeeper"):
            run.do("t", lambda: later())
        assert [step.key for step in run.steps()] == ["t"]


def test_a_need_that_no_lease_can_prove(keeper: Keeper, raw: RawEtcd) -> None:
    """A call that needs more authority than the TTL can ever prove is refused before it is recorded."""
    made = Effect()
    with keeper.run("order", id="1", signer=None, ttl=5) as run:
        revision = raw.revision()
        bad: list[Any] = [100, -1, float("nan"), "x"]
        for need in bad:
            with pytest.raises((Misuse, ConfigError)):
                run.do("s", made, need=need)
        assert raw.revision() == revision
        assert run.do("s", made, need=1.0) == 1


def test_what_an_effect_raises(keeper: Keeper) -> None:
    """What an effect raises comes out as it is; after NotApplied it is called again, after anything else it is in doubt."""

    def refuse() -> None:
        raise NotApplied("busy")

    def fail(number: int) -> None:
        raise errors[number]

    errors: list[BaseException] = [
        ValueError("x"),
        StopIteration("x"),
        TimeoutError(),
        ConfigError(field="f", value=1, expected="y"),
    ]
    made = Effect()
    with ends_with(InDoubt), keeper.run("order", id="1", signer=None) as run:
        for _ in range(2):
            with pytest.raises(NotApplied):
                run.do("s", refuse)
        assert run.do("s", made) == 1
        for number, error in enumerate(errors):
            with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
                run.do(f"f{number}", fail, number)
            assert run.last().kind == "raised"
            with pytest.raises(InDoubt):
                run.do(f"f{number}", fail, number)
    assert len(made.calls) == 1


def test_no_lease_is_taken_where_it_is_done_already(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A14: asked first, and somebody else has applied it: Conflict with a signed record, no claim, no key, no call."""
    made = Effect()

    @effect
    def patch(step: Step, host: str) -> None:
        made(host)

    @patch.preflight
    def patched(step: Step, host: str) -> Observed:
        return Observed({"host": host, "version": 2}, applied=True)

    key = HmacKey("k1", b"0123456789abcdef")
    with ends_with(Conflict) as told, keeper.run("patch", id="h1", signer=key, ask_first=(patch, "h1")):
        pass
    receipt = told.value.receipt
    assert receipt is not None
    assert (receipt.kind, receipt.key_id, receipt.data["pre"]["value"]) == (
        "conflict",
        "k1",
        {"host": "h1", "version": 2},
    )
    assert raw.claims(namespace) == []
    assert raw.keys(f"leasekeeper/{namespace}/run/") == []
    assert made.calls == []


def test_a_preflight_that_has_grown_old_is_asked_again(keeper: Keeper) -> None:
    """A15: between the first look and the call more time passes than that may be old: it is asked again, right before."""
    seen: list[int] = []

    @effect(preflight_max_age=0.0)
    def patch(step: Step) -> int:
        return 1

    @patch.preflight
    def patched(step: Step) -> Observed:
        seen.append(step.attempt)
        return Observed(None, applied=len(seen) > 1)

    with keeper.run("patch", id="1", signer=None) as run, pytest.raises(Conflict):
        run.do("s", patch)
    assert seen == [0, 1]


# ---------------------------------------------------------------- too much


def test_a_run_that_is_too_long(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RunTooLong comes before an intent, while its outcome and the run's end still fit; what is done is still found."""
    monkeypatch.setattr(limits, "RECORDS_MAX", 12)
    made = Effect()
    with keeper.run("order", id="1", signer=None) as run:
        with ends_with(RunTooLong) as told:
            for number in range(20):
                run.do(f"s{number}", made)
        assert told.value.most == 12
        done = len(made.calls)
        assert 3 <= done <= 5
        assert run.do("s0", made) == 1
        assert len(made.calls) == done
    with ends_with(RunFinished), keeper.run("order", id="1", signer=None) as run:
        assert run.do("s1", made) == 1
        run.do("new", made)


@pytest.mark.parametrize("sees", [None, True])
def test_a_finished_run_is_not_opened_again_by_a_step_left_open(
    keeper: Keeper, raw: RawEtcd, sees: bool | None
) -> None:
    """A step whose exception was swallowed is not put in doubt, nor adopted, once the run is finished: no worker would see it."""
    seen: list[bool | None] = [None]

    @effect()
    def mail(step: Step) -> None:
        raise OSError("no answer")

    @mail.preflight
    def mailed(step: Step) -> Observed:
        return Observed(applied=seen[0])

    with keeper.run("order", id="1", signer=None) as run, pytest.raises(OSError, match="no answer"):
        run.do("mail", mail)
    seen[0] = sees
    with ends_with(RunFinished), keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        try:
            run.do("mail", mail)
        finally:
            assert raw.revision() == revision
            assert run._life.log.head.status == "finished"


def test_a_quota_that_is_reached(keeper: Keeper) -> None:
    """Where etcd is as full as it may be, no step is begun; a step that is done is still found."""
    made = Effect()
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made)
        raise KeyError
    with keeper.run("order", id="1", signer=None, quota=1) as run:
        assert run.do("s", made) == 1
        with pytest.raises(QuotaReserved) as told:
            run.do("t", made)
        assert told.value.quota == 1
        assert [step.key for step in run.steps()] == ["s"]
    assert len(made.calls) == 1


# ---------------------------------------------------------------- an operator's word


def test_there_is_nothing_to_resolve(keeper: Keeper, raw: RawEtcd) -> None:
    """An operator's word about a run or step that is not there, or is not in doubt, is refused and changes nothing."""
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("done", Effect())
        with pytest.raises(NotApplied):
            run.do("cleared", _refuse)
        with pytest.raises(ValueError, match="x"):
            run.do("intent", _fail)
        revision = raw.revision()
        cases: list[tuple[dict[str, Any], type[BaseException]]] = [
            ({"run": "order/2", "step": "s", "applied": True}, ConfigError),
            ({"run": "order/1", "step": "nobody", "applied": True}, ConfigError),
            ({"run": "order/1", "step": "done", "applied": False}, Misuse),
            ({"run": "order/1", "step": "cleared", "applied": False}, Misuse),
            # Its owner is there, and may be about to call it.
            ({"run": "order/1", "step": "intent", "applied": True}, Misuse),
            ({"run": "order/1"}, Misuse),
            ({"run": "order/1", "step": "intent"}, ConfigError),
            ({"run": "order/1", "applied": True}, ConfigError),
        ]
        for case, error in cases:
            with pytest.raises(error):
                keeper.resolve(**case, evidence="looked", signer=None)
        for evidence in (None, "", {}, [], object()):
            with pytest.raises(ConfigError):
                keeper.resolve("order/1", "intent", applied=True, evidence=evidence, signer=None)
        with pytest.raises(ConfigError):
            keeper.resolve("order/1", "intent", applied=True, evidence="x", result=object(), signer=None)
        with pytest.raises(SigningKeyMissing):
            keeper.resolve("order/1", "intent", applied=True, evidence="x", signer=HmacKey("k1", b"0123456789abcdef"))
        assert raw.revision() == revision
        raise KeyError
    assert (
        keeper.resolve("order/1", "intent", applied=True, evidence="looked", result=[7], signer=None).kind == "resolved"
    )
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("intent", _fail) == [7]


def _refuse() -> None:
    raise NotApplied("busy")


def _fail() -> None:
    raise ValueError("x")


def test_a_conflict_is_resolved(keeper: Keeper) -> None:
    """Somebody else's effect, accepted by an operator as the step's own: done, with the operator's result."""

    @effect
    def patch(step: Step) -> int:
        raise AssertionError("called")

    patch.preflight(lambda step: Observed(None, applied=True))
    with ends_with(Conflict), keeper.run("order", id="1", signer=None) as run:
        run.do("s", patch)
    keeper.resolve("order/1", "s", applied=True, evidence={"ticket": 7}, result="theirs", signer=None)
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("s", patch) == "theirs"


def test_under_asyncio(etcd: EtcdServer, namespace: str) -> None:
    """The same refusals under asyncio: nothing is recorded of what cannot be, and coroutine functions are welcome."""

    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    async def main() -> None:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None) as run,
        ):
            with pytest.raises(NotSerialisable):
                await run.do("s", later, object())
            with pytest.raises(ConfigError):
                await run.do("", later, 1)
            with pytest.raises(Misuse):
                await run.do("s", later, 1, need=1000)
            assert [step async for step in run.steps()] == []
            assert await run.do("s", later, 1) == 2
            with pytest.raises(ArgumentsChanged):
                await run.do("s", later, 2)
            assert await run.memo("m", later, 2) == 3

    asyncio.run(main())


# ---------------------------------------------------------------- halts


@pytest.mark.parametrize("scope", ["*", "order/*", "order/1"])
def test_no_intent_after_the_revision_of_a_halt(keeper: Keeper, raw: RawEtcd, namespace: str, scope: str) -> None:
    """B15: of threads that begin steps as fast as they can, none begins after the halt's revision; what was begun is recorded."""
    halted: list[BaseException] = []
    begun = threading.Event()

    def work(index: int) -> None:
        number = 0
        try:
            while True:
                run.do(f"s{index}-{number}", lambda: 1)
                number += 1
                begun.set()
        except RunHalted as error:
            halted.append(error)

    with keeper.run("order", id="1", signer=None) as run, keeper.run("other", id="1", signer=None) as other:
        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(8)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        revision = keeper.halt(scope, "enough")
        for thread in threads:
            thread.join(30)
        assert len(halted) == 8
        root = f"leasekeeper/{namespace}/run/order/1/"
        intents = [key for key in raw.keys(root + "r/") if b'"kind":"intent"' in key.value]
        outcomes = [key for key in raw.keys(root + "r/") if b'"kind":"outcome"' in key.value]
        assert intents
        assert max(key.create_revision for key in intents) < revision
        assert len(intents) == len(outcomes)
        if scope == "*":
            with pytest.raises(RunHalted):
                other.do("s", lambda: 1)
        else:
            assert other.do("s", lambda: 1) == 1
        assert keeper.unhalt(scope)
        assert not keeper.unhalt(scope)
        assert run.do("on", lambda: 1) == 1


def test_what_was_begun_before_a_halt_is_recorded_after_it(keeper: Keeper) -> None:
    """B15: evidence lands under a halt, and so do states; only beginning is stopped."""

    def slow() -> int:
        keeper.halt("order/*", "stop")
        return 7

    with ends_with(RunHalted) as told, keeper.run("order", id="1", signer=None) as run:
        assert run.do("s", slow) == 7
        assert run.do("s", slow) == 7
        run.checkpoint("state", dict).commit(a=1)
        run.do("t", slow)
    assert (told.value.scope, told.value.reason, told.value.step) == ("order/*", "stop", "t")
    assert told.value.by
