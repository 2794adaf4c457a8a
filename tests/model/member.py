"""One keeper of a crowd: its network, its threads, its plans one operation at a time, and its life."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from leasekeeper.errors import LeasekeeperError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import queue
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.leave import release
from leasekeeper.protocol.plan import (
    KEEP_ALIVE,
    TXN,
    Call,
    Cause,
    Detach,
    Fault,
    Kind,
    Method,
    Operation,
    Plan,
    Sleep,
    Wait,
    Watch,
)
from leasekeeper.protocol.session import Session
from leasekeeper.timing import Timing
from tests.model.heart import Heart, ModelWatch
from tests.model.world import Client

if TYPE_CHECKING:
    from tests.model.crowd import Crowd

NAME = "name"
POLL_S = 0.1

Answer = Callable[["Message | Fault"], None]


class Member(Client):
    """One keeper with a network and a life of its own."""

    crowd: Crowd

    def __init__(self, crowd: Crowd, timing: Timing) -> None:
        super().__init__(crowd, timing)
        self.crowd = crowd
        self.cut_until_s = self.frozen_until_s = 0.0
        self.held: Authority | None = None
        self.heart = SlowHeart(self)
        self.table._heart = self.heart  # type: ignore[assignment]
        crowd.later(0.0, self._heart_turns)
        crowd.later(0.0, self._background_turns)

    @property
    def cut(self) -> bool:
        """Whether nothing gets through."""
        return self.crowd.now_s < self.cut_until_s

    def cut_off(self, seconds: float) -> None:
        """Nothing gets through for so long, at least."""
        self.cut_until_s = max(self.cut_until_s, self.crowd.now_s + seconds)

    def awake(self, event: Callable[[], None]) -> Callable[[], None]:
        """The event, put off while the process stands still."""

        def run() -> None:
            left_s = self.frozen_until_s - self.crowd.now_s
            if left_s > 0:
                self.crowd.later(left_s, run)
            else:
                event()

        return run

    # ------------------------------------------------------------ the network

    def send(self, method: Method, request: Message, timeout_s: float, answer: Answer) -> None:
        """A request on its way; ``answer`` is called once, with the reply or with what is known instead of one."""
        crowd, wire = self.crowd, type(request).FromString(request.SerializeToString())
        open_ = [True]

        def tell(result: Message | Fault) -> None:
            if open_[0]:
                open_[0] = False
                self.awake(lambda: answer(result))()

        crowd.later(timeout_s, lambda: tell(Fault(Kind.UNKNOWN, text="no answer", operation=method.operation)))
        if self.cut and crowd.chance.random() < 0.5:
            crowd.later(0.01, lambda: tell(Fault(Kind.NOT_SENT, text="refused", operation=method.operation)))
            return
        if self.cut or crowd.chance.random() < 0.02:
            return  # lost on the way out
        era = crowd.era
        crowd.later(self._way_s(), lambda: self._arrives(era, wire, tell))

    def _way_s(self) -> float:
        chance = self.crowd.chance
        return chance.uniform(0.001, 0.02) if chance.random() < 0.95 else chance.uniform(0.02, 6.0)

    def _arrives(self, era: int, request: Message, tell: Answer) -> None:
        if era != self.crowd.era:
            return
        result: Message | Fault
        try:
            result = self.crowd.store.answer(request)
        except Fault as fault:
            result = fault
        if not self.cut and self.crowd.chance.random() >= 0.02:
            self.crowd.later(self._way_s(), lambda: tell(result))

    # ------------------------------------------------------------ its threads

    def _heart_turns(self) -> None:
        self.heart.round()
        wake_s = min(1.0, self.heart.beats.wake_at(self.crowd.now_s) - self.crowd.now_s)
        self.crowd.later(max(0.001, wake_s), self.awake(self._heart_turns))

    def _background_turns(self) -> None:
        waiting, self.detached = self.detached, []
        for plan in waiting:
            self.begin(plan(), lambda _result, error, plan=plan: self._retry(plan, error))  # type: ignore[misc]
        self.crowd.later(0.2, self.awake(self._background_turns))

    def _retry(self, plan: Callable[[], Plan[object]], error: BaseException | None) -> None:
        if isinstance(error, Fault):
            self.detached.append(plan)

    def tidy(self) -> None:
        """The background has a turn of its own here."""

    # ------------------------------------------------------------ plans, one operation at a time

    def begin(self, plan: Plan[Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run a plan step by step; ``done`` is told its result or its error."""
        self._step(plan, done, lambda: next(plan))

    def _step(
        self, plan: Plan[Any], done: Callable[[Any, BaseException | None], None], go_on: Callable[[], Operation]
    ) -> None:
        try:
            operation = go_on()
        except StopIteration as end:
            done(end.value, None)
        except (Fault, LeasekeeperError) as error:
            done(None, error)
        else:
            self._perform_later(operation, lambda result: self._resume(plan, done, result))

    def _resume(self, plan: Plan[Any], done: Callable[[Any, BaseException | None], None], result: Any) -> None:
        failed = isinstance(result, Fault)
        self._step(plan, done, lambda: plan.throw(result) if failed else plan.send(result))

    def _perform_later(self, operation: Operation, then: Callable[[Any], None]) -> None:
        match operation:
            case Call(method, request, timeout_s, strict):
                seen = self.seen
                self.send(method, request, timeout_s, lambda result: then(self._marked(method, result, seen, strict)))
            case Sleep(seconds):
                self.crowd.later(seconds * self.crowd.chance.uniform(0.5, 1.0), self.awake(lambda: then(None)))
            case Watch(keys, start):
                then(CutWatch(self, keys, start))
            case Wait():
                self._look(operation, then)
            case Detach(plan):
                self.detached.append(plan)
                then(None)

    def _marked(self, method: Method, result: Any, seen: int, strict: bool) -> Any:
        if isinstance(result, Fault) or not method.linearizable:
            return result
        revision = result.header.revision
        if revision > self.seen:
            self.seen = revision
        elif revision < seen and strict and self.seen:
            return Fault(Kind.FIX, Cause.REWOUND, f"{revision} after {seen}", seen=seen, now=revision)
        return result

    def _look(self, wait: Wait, then: Callable[[Any], None]) -> None:
        is_set = any(signal.is_set() for signal in wait.signals)
        if is_set or (wait.until is not None and self.crowd.now_s >= wait.until):
            then(is_set)
        else:
            self.crowd.later(POLL_S, self.awake(lambda: self._look(wait, then)))

    # ------------------------------------------------------------ its life

    def live(self) -> None:
        """Try to own the name, in one way or another."""
        if self.crowd.quiet:
            return
        chance = self.crowd.chance
        if chance.random() < 0.2:
            self.begin(queue.try_acquire(self.ctx, self.want(NAME)), self._acquired)
        else:
            timeout_s = chance.choice((None, None, 0.5, 5.0, 30.0))
            self.begin(queue.acquire(self.ctx, self.want(NAME, timeout_s)), self._acquired)

    def _acquired(self, authority: Authority | None, error: BaseException | None) -> None:
        chance = self.crowd.chance
        if authority is None:
            self.crowd.tell(f"{self.ctx.holder} does not acquire: {error!r:.60}")
            self.crowd.later(chance.uniform(0.1, 3.0), self.awake(self.live))
            return
        self.crowd.tell(f"{self.ctx.holder} acquires with token {authority.token}")
        if authority.create_revision not in self.crowd.removed:
            assert authority.token > max(self.crowd.owners, default=0), "G2"
        self.crowd.owners.append(authority.token)
        self.held = authority
        self._work(authority, self.crowd.now_s + chance.uniform(0.1, 20.0))

    def _work(self, authority: Authority, until: float) -> None:
        """Act behind the gate every now and then; a write may take its time to the resource."""
        crowd = self.crowd
        if authority.loss is not None:
            crowd.tell(f"{self.ctx.holder} has lost {authority.token}: {authority.loss.reason}")
            self.held = None
            crowd.later(0.1, self.awake(self.live))
        elif crowd.now_s >= until or crowd.quiet:
            crowd.tell(f"{self.ctx.holder} gives back {authority.token}")
            authority.release()
            self.held = None
            self.begin(release(self.ctx, authority.slot), lambda *_: crowd.later(0.1, self.awake(self.live)))
        else:
            if authority.passes(0.0, crowd.now_s):
                token, claim = authority.token, authority.slot.nonce
                way_s = crowd.chance.choice((0.0, 0.01, 0.5, 15.0))
                crowd.later(way_s, lambda: crowd.sink.write(token, claim))
            crowd.later(crowd.chance.uniform(0.1, 0.6), self.awake(lambda: self._work(authority, until)))


class SlowHeart(Heart):
    """The heart of a member: its calls go through the member's network."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._member = member

    def round(self) -> None:
        """Everything that is due now; no news of keys while the member is cut off."""
        self._world.down = self._member.cut
        super().round()
        self._world.down = False

    def _beat(self, session: Session, number: int) -> None:
        def answered(result: Any) -> None:
            now_s = self._world.now_s
            if isinstance(result, Fault):
                self._do(self.beats.failed(session, number, result.text, now_s))
            else:
                self._do(self.beats.answered(session, number, result.TTL, now_s))

        request = pb.LeaseKeepAliveRequest(ID=session.lease_id)
        self._member.send(KEEP_ALIVE, request, session.timing.authority_s, answered)

    def _read_back(self, session: Session, keys: tuple[bytes, ...]) -> None:
        def answered(result: Any) -> None:
            now_s = self._world.now_s
            if isinstance(result, Fault):
                self._do(self.beats.read_back_failed(session, now_s))
                return
            found = {key: next(iter(m.range_kvs(result, index)), None) for index, key in enumerate(keys)}
            self._do(self.beats.read_back(session, found, now_s))

        request = m.read_only(m.get(key, keys_only=True) for key in keys)
        self._member.send(TXN, request, session.timing.pause_s, answered)


class CutWatch(ModelWatch):
    """A watch that hears nothing while its member is cut off."""

    def __init__(self, member: Member, keys: tuple[bytes, ...], start: int) -> None:
        super().__init__(member.crowd.store, keys, start)
        self._member = member

    def is_set(self) -> bool:
        """Whether there is news that has come through."""
        return not self._member.cut and super().is_set()
