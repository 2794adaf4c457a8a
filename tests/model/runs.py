"""A run on a model etcd: its owner, several plans that add to it at once in any order, and what is left in the store.

A `Crew` runs plans side by side, one operation at a time, in an order that the test chooses; each of them can be interrupted at
any of its operations. What waits for a bell goes on when it rings; time passes only when nobody can do anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leasekeeper.fencing import split_token
from leasekeeper.protocol.append import Entry, Log
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.guarded import Ownership
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.history import checked
from leasekeeper.protocol.opening import Opened, Opening, open_run
from leasekeeper.protocol.plan import Operation, Plan, Wait
from leasekeeper.protocol.queue import acquire
from leasekeeper.protocol.receipt import FIRST_PREV, Draft, digest, link
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.run_records import Receipt
from leasekeeper.runtime.appending import Queue
from leasekeeper.timing import Timing
from tests.model.world import KEYS, Client, Run, Strike, World, makes_a_difference

__all__ = ["Crew", "Owner", "entry", "records"]

NAME = RunName("order", "o-1")
STEPS_MAX = 4000
OPEN_S = 30.0
# So long that no test loses its claim by letting time pass.
TTL_S = 3600.0


class Owner:
    """One life of a run: a client that owns its lease, and the log that it was opened with."""

    def __init__(self, world: World | None = None, name: RunName = NAME, **opening: Any) -> None:
        self.world = world or World()
        self.client = Client(self.world, Timing(ttl=TTL_S))
        self.keys = RunKeys(KEYS, name)
        self.alive = True
        ctx = self.client.ctx
        ctx.new_nonce = lambda: f"{self.world.number():032x}"
        self.authority: Authority = self.client.do(acquire(ctx, self.client.want(name.lease)))
        token = self.authority.token
        self.mine = Ownership(name.lease, token, self.authority.slot.key, split_token(token)[1])
        facts = {"claim": self.authority.slot.nonce, "host": "here"}
        begun = Opening(life=f"{self.world.number():032x}", facts=facts, **opening)
        self.opened: Opened = self.client.do(
            open_run(
                ctx,
                self.keys,
                self.mine,
                begun,
                line=Queue(),
                alive=lambda: self.alive,
                until=ctx.now() + OPEN_S,
            )
        )

    @property
    def log(self) -> Log:
        """The run's log."""
        return self.opened.log

    def leave(self) -> None:
        """Its claim goes, as when its lease has run out."""
        self.world.store.delete(self.mine.key)

    def records(self) -> list[Receipt]:
        """What is recorded of the run, checked."""
        return records(self.world, self.keys)


def entry(owner: Owner, text: str, **more: Any) -> Entry:
    """Something to add that can be told from all else."""
    return Entry(Draft("note", text, b"{}", owner.client.ctx.new_nonce()), **more)


def records(world: World, keys: RunKeys) -> list[Receipt]:
    """The records of a run; asserts that they follow one another without hole or fork, and that the head names the last."""
    found = sorted(world.store.below(keys.records), key=lambda kv: kv.key)
    prev, receipts = FIRST_PREV, []
    for seq, kv in enumerate(found, 1):
        assert kv.key == keys.record(seq), "a hole"
        assert kv.version == 1, "a record was changed"
        assert link(kv.value) == (prev, seq), "a fork"
        receipts.append(checked(keys, seq, kv.value))
        prev = digest(kv.value)
    head = stored_head(world, keys)
    assert (head.seq, head.hash) == (len(receipts), prev), "the head does not name the last record"
    assert len({receipt.nonce for receipt in receipts}) == len(receipts), "something was added twice"
    return receipts


def stored_head(world: World, keys: RunKeys) -> Head:
    """The head as it stands."""
    return read_head(world.store.keys[keys.head].value, "the head")


@dataclass
class _Going:
    """A plan that is under way."""

    plan: Plan[Any]
    run: Run[Any] = field(default_factory=Run)
    operation: Operation | None = None
    ended: bool = False

    def begin(self) -> None:
        self._take(lambda: next(self.plan))

    def on(self, result: Any) -> None:
        self._take(lambda: self.plan.send(result))

    def struck(self, error: BaseException) -> None:
        self._take(lambda: self.plan.throw(error))

    def _take(self, step: Callable[[], Operation]) -> None:
        try:
            self.operation = step()
            self.run.trace.append(self.operation)
        except StopIteration as done:
            self.run.result, self.ended = done.value, True
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.run.error, self.ended = error, True

    def ready(self) -> bool:
        """Whether it can go on at this moment."""
        waits = self.operation
        return not isinstance(waits, Wait) or any(signal.is_set() for signal in waits.signals)


class Crew:
    """Plans side by side. ``waited_s`` is how long nobody could do anything: waits that ended by the clock alone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.waited_s = 0.0

    def run(
        self,
        plans: Sequence[Plan[Any]],
        choose: Callable[[list[int]], int] = min,
        strikes: Mapping[tuple[int, int], Strike] | None = None,
    ) -> list[Run[Any]]:
        """Run them all to their end. ``choose`` says which of those that can goes on; ``strikes`` by plan and its operation."""
        going = [_Going(plan) for plan in plans]
        for each in going:
            each.begin()
        for _ in range(STEPS_MAX):
            left = [index for index, each in enumerate(going) if not each.ended]
            if not left:
                return [each.run for each in going]
            able = [
                index
                for index in left
                if going[index].ready() or _is_struck(going[index], (strikes or {}).get(_at(index, going)))
            ]
            if able:
                index = choose(able)
                self._step(going[index], (strikes or {}).get(_at(index, going)))
            else:
                self._let_time_pass([going[index] for index in left])
        raise AssertionError("they do not come to an end")

    def _step(self, each: _Going, strike: Strike | None) -> None:
        operation = each.operation
        assert operation is not None
        try:
            if strike is not None and makes_a_difference(operation, strike):
                self._client._strike(operation, strike)
            waits = isinstance(operation, Wait)
            result = each.ready() if waits else self._client._perform(operation)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the plan must see it
            each.struck(error)
        else:
            each.on(result)

    def _let_time_pass(self, waiting: list[_Going]) -> None:
        waits = [(each.operation.until, each) for each in waiting if isinstance(each.operation, Wait)]
        until = min(until for until, _ in waits if until is not None)
        began_s = self._client.world.now_s
        self._client.world.pass_time(max(0.0, until - began_s))
        self.waited_s += self._client.world.now_s - began_s
        for due, each in waits:
            if due is not None and due <= self._client.world.now_s:
                each.on(False)


def _is_struck(each: _Going, strike: Strike | None) -> bool:
    assert each.operation is not None
    return strike is not None and makes_a_difference(each.operation, strike)


def _at(index: int, going: list[_Going]) -> tuple[int, int]:
    return index, len(going[index].run.trace) - 1
