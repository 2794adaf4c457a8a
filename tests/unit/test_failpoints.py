"""Failpoints: armed and disarmed, counted, and named after what there is in the source."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

import leasekeeper
from leasekeeper import AsyncKeeper, ConfigError, Keeper, Misuse
from leasekeeper.protocol.receipt import Draft, Writer
from leasekeeper.testing import failpoints

SOURCE = Path(leasekeeper.__file__).parent
SIDES = {"Talk": ("send", "reply"), "Invoke": ("call", "return")}


def passes(on: object, *points: str) -> None:
    """What a step does at these points."""
    for point in points:
        on._passing(point)  # type: ignore[attr-defined]


def literals(node: ast.expr) -> set[str]:
    """The texts that an expression can be."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.IfExp):
        return literals(node.body) | literals(node.orelse)
    return set()


def test_the_list_is_that_of_the_source() -> None:
    """A24: Every request and call that the code of a step yields has its two points in the list, and nothing else has."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {
            node.targets[0].id: literals(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and literals(node.value)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
                # `talk` makes a conduct of one request.
                sides = SIDES.get("Talk" if node.func.id == "talk" else node.func.id)
                name = node.args[1]
                words = named.get(name.id, set()) if isinstance(name, ast.Name) else literals(name)
                found |= {f"{word}:{side}" for word in words for side in sides or ()}
    assert found == set(failpoints.names())


def test_a_point_strikes_once_at_its_turn() -> None:
    """The nth time that the point is passed counts, whatever else is passed, and nothing happens again after it."""
    keeper = Keeper()
    error = KeyError("here")
    with failpoints.raise_at("intent:send", error, on=keeper, nth=2) as point:
        passes(keeper, "intent:send", "intent:reply", "effect:call")
        assert "waits" in repr(point)
        with pytest.raises(KeyError) as raised:
            passes(keeper, "intent:send")
        assert raised.value is error
        assert point.struck
        passes(keeper, "intent:send", "intent:send")
    assert "struck" in repr(point)


def test_several_points_hear_each_other_out() -> None:
    """Those that are armed at once each count for themselves, and are taken away in any order."""
    keeper = AsyncKeeper()
    first, second = failpoints.track(on=keeper), failpoints.track(on=keeper)
    with failpoints.raise_at("open:send", ZeroDivisionError(), on=keeper):
        first.__enter__()
        passes(keeper, "find:send")
        second.__enter__()
        first.__exit__(None, None, None)
        passes(keeper, "find:reply")
        with pytest.raises(ZeroDivisionError):
            passes(keeper, "open:send")
    passes(keeper, "open:send")
    second.__exit__(None, None, None)
    passes(keeper, "open:reply")
    assert first.points == ("find:send",)
    assert second.points == ("find:reply", "open:send")


def test_one_run_alone() -> None:
    """Armed on what `run()` returned, a point is of that run, and what is armed on the keeper hears of it as well."""
    with Keeper() as keeper, failpoints.track(on=keeper) as everything:
        one, other = keeper.run("w", id="1"), keeper.run("w", id="2")
        with failpoints.track(on=one) as some:
            passes(one, "open:send")
            passes(other, "open:reply")
    assert some.points == ("open:send",)
    assert everything.points == ("open:send", "open:reply")


def test_a_pause_holds_until_it_is_told() -> None:
    """Whoever passes waits, others see that he does, and the end of the block lets him go."""
    keeper = Keeper()
    with failpoints.pause_at("effect:call", on=keeper) as pause:
        assert not pause.wait(0)
        thread = threading.Thread(target=passes, args=(keeper, "effect:call"), name="passer")
        thread.start()
        assert pause.wait(20)
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()


def test_bad_points_are_refused() -> None:
    """What there is not, what counts nothing, and what has no runs."""
    keeper = Keeper()
    with pytest.raises(ConfigError, match="intent:send"):
        failpoints.kill_at("intent", on=keeper)
    for nth in (0, True, 1.0):
        with pytest.raises(ConfigError, match="whole number"):
            failpoints.freeze_at("intent:send", on=keeper, nth=nth)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="keeper"):
        failpoints.track(on=object())  # type: ignore[arg-type]
    point = failpoints.kill_at("intent:send", on=keeper)
    with point, pytest.raises(Misuse, match="armed"):
        point.__enter__()


def test_a_record_is_found_in_a_request() -> None:
    """By its kind and its run's id, as they are written: no other kind, no other run."""
    writer = Writer(
        workflow="w",
        id='o"42',
        gen=1,
        namespace_id="0" * 32,
        token=1,
        claim="c",
        holder="h",
        life="1" * 32,
        key=None,
    )
    message = b"\x00" + writer.seal(Draft("intent", "outcome", b"{}", "n"), seq=1, prev="0" * 64, at_ms=1) + b"\xff"
    assert failpoints.record("intent")(message)
    assert failpoints.record("intent", run='o"42')(message)
    assert not failpoints.record("outcome")(message)
    assert not failpoints.record("intent", run="o")(message)
