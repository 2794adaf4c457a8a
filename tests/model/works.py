"""Steps of each kind of help, done on the model, and what must be true of their records."""

from __future__ import annotations

from typing import Any

from leasekeeper.protocol.pointer import Pointer, read_pointer
from tests.model.steps import Life, Outside, Works

KINDS = [
    Works("bare"),
    Works("at most once", frozenset(["at_most_once"]), asks=True),
    Works("fences", frozenset(["fences"])),
    Works("asks", asks=True),
    Works("dedupes", frozenset(["dedupes"]), dedupes=True),
    Works("dedupes and lags", frozenset(["dedupes"]), asks=True, consistency="eventual", dedupes=True, lags=True),
    Works("probe", frozenset(["probe"]), asks=True, verifies=True),
    Works("probe that lags", frozenset(["probe"]), asks=True, consistency="eventual", lags=True),
    Works("all of it", frozenset(["dedupes", "probe", "fences"]), asks=True, verifies=True, dedupes=True),
    Works("memo", kind="memo"),
]
BY_NAME = {works.name: works for works in KINDS}


def attempt(life: Life, works: Works, outside: Outside, step: str = "s") -> Any:
    """Do the step; asserts at the moment of each call that its intent stands in etcd, with its key."""

    def seen(pointer: Pointer) -> None:
        stands = read_pointer(life.world.store.keys[life.owner.keys.step(step)])
        assert (stands.state, stands.attempts, stands.idem) == ("intent", pointer.attempts, pointer.idem)

    return life.step(works.spec(step), works.calls(outside, seen))


def check_records(life: Life, step: str = "s") -> None:
    """A4: no outcome without an earlier intent, and one outcome at most."""
    kinds = [receipt.kind for receipt in life.owner.records() if receipt.step == step]
    outcomes = [index for index, kind in enumerate(kinds) if kind == "outcome"]
    assert len(outcomes) <= 1
    for index in outcomes:
        assert {"intent", "before"} & set(kinds[:index])
