"""What a keeper is made of, the same for threads and asyncio: engine, heart, sessions, background, and their life and death."""

from __future__ import annotations

import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from leasekeeper.clock import BOOT_CLOCK, Clock
from leasekeeper.errors import ConfigError, Misuse, NotAcquired, StopWork
from leasekeeper.protocol.authority import Authority, disown
from leasekeeper.protocol.context import Context
from leasekeeper.protocol.keys import Keys, check_name, check_note
from leasekeeper.protocol.leave import remove, sweep, withdraw
from leasekeeper.protocol.lend import Want
from leasekeeper.protocol.plan import Cause, Fault, Plan
from leasekeeper.protocol.session import Session, Slot, Tending, revoke
from leasekeeper.runtime import fork
from leasekeeper.runtime.aio import Asyncio
from leasekeeper.runtime.announce import Announcer
from leasekeeper.runtime.background import Background
from leasekeeper.runtime.blocking import Blocking
from leasekeeper.runtime.events import AcquireFailed, CleanupFailed, Dropped, Event, Observer
from leasekeeper.runtime.fork import HERE
from leasekeeper.runtime.heart import Heart
from leasekeeper.runtime.life import Life
from leasekeeper.runtime.sessions import SessionTable
from leasekeeper.runtime.signals import Flag
from leasekeeper.timing import Timing
from leasekeeper.wire.auth import Login
from leasekeeper.wire.channel import TLS, Channel, Channels, parse_endpoints
from leasekeeper.wire.engine import Engine
from leasekeeper.wire.watch import WatchHub
from leasekeeper.wire.worker import Worker

__all__ = ["Core", "observers"]

log = logging.getLogger("leasekeeper")

HOLDER_MAX = 255
# How long closing a keeper may take. Most of it only when etcd does not answer; the last bit is for the threads to end.
CLOSE_S = 3.0
LAST_BIT_S = 0.25
# One attempt to revoke, so that another endpoint gets its turn.
REVOKE_S = 1.0
# How long a call may try that belongs to no acquire.
ASK_S = 10.0
# How long etcd may take to answer an acquire that has no time to wait for its turn.
ONCE_S = 3.0

# Observers of every keeper in the process; see leasekeeper.observe, which alone changes it.
observers: list[Observer] = []


class Core:
    """One keeper's machinery. Makes no I/O and starts no thread until it is used.

    In a forked child every lease is LOST, nothing is released and nothing can be acquired: the parent goes on unharmed,
    and the child makes a keeper of its own. One that was not used before the fork has nothing to lose and works in both.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        namespace: str = "default",
        timing: Timing | None = None,
        tls: TLS | None = None,
        user: str | None = None,
        password: str | None = None,
        holder: str | None = None,
        channel: Channel | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        clock: Clock = BOOT_CLOCK,
    ) -> None:
        if timing is not None and not isinstance(timing, Timing):
            raise ConfigError(field="timing", value=timing, expected="a leasekeeper.Timing, or None")
        if tls is not None and not isinstance(tls, TLS):
            raise ConfigError(field="tls", value=tls, expected="a leasekeeper.TLS, or None")
        self.timing = timing or Timing()
        self.now = now = clock.now
        self.forked = False
        self.used = False
        self._lent = channel is not None
        self.closed = False
        self._ended = False
        # The leases of a keeper that is being closed.
        self._unrevoked: dict[int, None] = {}
        self.engine = Engine(
            Channels(parse_endpoints(endpoints), tls=tls, lent=channel), Login(user, password, now), metadata, now
        )
        self.hub = WatchHub(self.engine, now)
        self.announcer = Announcer()
        self.background = Background(now, self._cleanup_failed)
        self.heart = Heart(self.engine, self.hub, self.announcer, now, self.observe_soon)
        keys = Keys(namespace)
        self.engine.scope = keys.root
        self.sessions = SessionTable(keys, now, self.heart, self._dropped)
        self._make_context = partial(_context, keys, holder, self)
        self.ctx = self._make_context()
        self._closing = Flag()
        detach = self.background.detach
        self.blocking = Blocking(self.engine, self.hub, detach, now, closing=self._closing)
        self.asyncio = Asyncio(self.engine, self.hub, detach, now, closing=self._closing)
        self.cleaning = Blocking(self.engine, self.hub, detach, now, route=self.engine.cleanups)
        self.background.interpreter = self.cleaning
        self.heart.desert = self._desert
        self.heart.remove = self._remove
        self.heart.vacate = self.sessions.vacate
        self.heart.sweep = self._sweep
        self.heart.revoke = self._revoke
        self.heart.epoch_key = keys.epoch
        self.heart.take_in = lambda epoch: self.ctx.take_in(epoch)
        self._closer = Worker(self.close, "leasekeeper-close")
        self._life: Callable[[], Life | None] = lambda: None
        fork.register(self)

    # ------------------------------------------------------------ asking

    def want(self, name: str, ttl: float | None, timeout: float | None, note: str) -> Want:
        """Check what somebody asks for; nothing has been sent when it is refused."""
        self.check_usable()
        check_name(name)
        check_note(note)
        timing = self.timing if ttl is None or ttl == self.timing.ttl else replace(self.timing, ttl=ttl)
        since = self.now()
        return Want(name, timing, note, None if timeout is None else since + check_timeout(timeout), since)

    def check_usable(self) -> None:
        """Raise Misuse for a keeper that is closed or was made before a fork."""
        fork.check_process()
        if self.forked:
            raise Misuse("this keeper was made before a fork: make a new Keeper in the child process")
        if self.closed:
            raise Misuse("the keeper is closed")

    def until(self, timeout: float | None = None) -> float:
        """Until when a call that belongs to no acquire may try."""
        self.check_usable()
        return self.now() + (ASK_S if timeout is None else timeout)

    def run(self, plan: Plan[Any]) -> Any:
        """Run a plan in this thread, with the errors that users see."""
        self.used = True
        try:
            return self.blocking.run(plan)
        except Fault as fault:
            raise self.engine.public(fault) from None

    async def arun(self, plan: Plan[Any]) -> Any:
        """Run a plan under asyncio, with the errors that users see."""
        self.used = True
        try:
            return await self.asyncio.run(plan)
        except Fault as fault:
            raise self.engine.public(fault) from None

    def acquire(self, want: Want, plan: Plan[Authority | None]) -> Authority | None:
        """Run a plan that acquires in this thread; observers are told when nothing comes of it."""
        try:
            authority: Authority | None = self.run(plan)
        except BaseException as error:
            self._not_acquired(want, type(error))
            raise
        if authority is None:
            self._not_acquired(want, NotAcquired)
        return authority

    async def aacquire(self, want: Want, plan: Plan[Authority | None]) -> Authority | None:
        """Run a plan that acquires under asyncio; observers are told when nothing comes of it."""
        try:
            authority: Authority | None = await self.arun(plan)
        except BaseException as error:
            self._not_acquired(want, type(error))
            raise
        if authority is None:
            self._not_acquired(want, NotAcquired)
        return authority

    def _not_acquired(self, want: Want, error: type[BaseException]) -> None:
        if observers:
            self.observe(AcquireFailed(want.name, error.__name__, self.now() - want.since))

    # ------------------------------------------------------------ telling

    def observe(self, event: Event) -> None:
        """Tell observers now, in this thread. What one of them raises is logged and goes no further."""
        for observer in tuple(observers):
            try:
                observer(event)
            except (StopWork, Exception):
                log.exception("an observer failed; leases are not affected")

    def observe_soon(self, event: Event) -> None:
        """Tell observers on the announcer's thread."""
        for observer in tuple(observers):
            self.announcer.tell(observer, event)

    def _cleanup_failed(self, why: str) -> None:
        self.observe_soon(CleanupFailed("a claim or a lease", why))

    # ------------------------------------------------------------ ending claims

    def _dropped(self, slot: Slot) -> None:
        """A lease was garbage-collected without a release. Called from anywhere, so it only leaves notes."""
        if self.forked or self.closed or not HERE[0]:
            return
        slot.leaving = True
        self.background.detach(partial(self._tell_dropped, slot))
        self.background.detach(partial(withdraw, self.ctx, slot))

    def _tell_dropped(self, slot: Slot) -> Plan[None]:
        """In the background, where locks may be taken. A plan of its own, because the one that withdraws may be repeated."""
        self.heart.forget(slot)
        self.observe_soon(Dropped(slot.name, slot.nonce))
        yield from ()

    def _desert(self, slot: Slot) -> None:
        slot.leaving = True
        self.heart.forget(slot)
        self.background.detach(partial(withdraw, self.ctx, slot))

    def _remove(self, slot: Slot, create_revision: int) -> None:
        slot.leaving = True
        self.background.detach(partial(remove, self.ctx, slot, create_revision))

    def _sweep(self, session: Session) -> None:
        self.background.detach(partial(sweep, self.ctx, session))

    def _revoke(self, session: Session) -> None:
        if self.sessions.retire(session):
            self.heart.discard(session)
            if not session.gone:
                session.shut()
                self.background.detach(partial(revoke, session.lease_id))

    def release(self, authority: Authority) -> Tending | None:
        """Shut the gate before anything is sent; None if it was not owned any more. See `Heart.release`."""
        # In a forked child the lock around transitions may be held by a thread that does not exist there.
        return None if self.forked else self.heart.release(authority)

    # ------------------------------------------------------------ end of life

    def begin(self) -> Life:
        """For the keeper that owns this: its life, which ends with the last of those who hold it."""
        life = Life(self)
        self._life = weakref.ref(life)
        return life

    def life(self) -> Life | None:
        """For leases: the life that the keeper began; None where there is no keeper."""
        return self._life()

    def abandon(self) -> None:
        """Nobody is left who could use or close it. Claims that were dropped in the same moment are given up first."""
        if not self.used or self.forked or self._ended or not HERE[0]:
            return
        if not self.closed:
            self.background.detach(self._close_later)
            return
        try:
            self._closer.start()  # Ctrl-C struck whoever was closing it
        except RuntimeError:
            pass  # no thread can be started any more

    def _close_later(self) -> Plan[None]:
        self.background.detach(self._close_now)
        yield from ()

    def _close_now(self) -> Plan[None]:
        self.close()
        yield from ()

    def close(self) -> None:
        """End every lease (LOST, reason ``closed``) and revoke what etcd still holds for this keeper, within `CLOSE_S`.

        All that others wait for through the keeper ends at once; on a lent channel, when their call under way ends. May be
        called again, also by several threads at once and after Ctrl-C: each call does what is left to do.
        """
        fork.check_process()
        self.closed = True
        if self.forked or self._ended:
            return
        until = self.now() + CLOSE_S
        try:
            self._shut(until)
            self._revoke_all(until)
        finally:
            self._end(until)

    def _end(self, until: float) -> None:
        """The last part of closing, and after Ctrl-C all that it left undone; what is not revoked yet gets one more try."""
        self._shut(until)
        for lease_id in tuple(self._unrevoked):
            self.background.detach(partial(revoke, lease_id, REVOKE_S))
        self.background.close(max(LAST_BIT_S, until - self.now()))
        self.hub.close()
        self.announcer.close(max(LAST_BIT_S, until - self.now()))
        self.engine.close()
        self._ended = True

    def _shut(self, until: float) -> None:
        """Shut every gate, wake everybody and cut off what they wait for. Nothing is sent."""
        self._shut_sessions()
        self._closing.set()
        self.engine.calls.close()
        while self.sessions.opening() and self.now() < until:
            time.sleep(0.01)
        self._shut_sessions()  # those that were being opened
        self.heart.close(max(LAST_BIT_S, until - self.now()))

    def _shut_sessions(self) -> None:
        for session in self.sessions.close():
            self._unrevoked[session.lease_id] = None
            for authority in session.authorities():
                self.heart.lose(authority, "closed")
            self.heart.end(session)

    def _revoke_all(self, until: float) -> None:
        """Best effort, each in turn: whatever cannot be revoked in time runs out by itself."""
        while self._unrevoked and (left_s := until - self.now()) > 0:
            lease_id = next(iter(self._unrevoked))
            try:
                self.cleaning.run(revoke(lease_id, min(REVOKE_S, left_s)))
            except Fault as fault:
                if fault.cause is Cause.CLOSED:
                    return
                self._unrevoked.pop(lease_id, None)
                self._unrevoked[lease_id] = None  # at the end of the line
                time.sleep(0.05)
            else:
                self._unrevoked.pop(lease_id, None)

    # ------------------------------------------------------------ forks

    def quiet(self, until: float) -> None:
        """A fork is about to come."""
        if not (self.closed or self.forked):
            self.hub.quiet(until - time.monotonic())
            self.engine.calls.quiet(until)

    def go_on(self) -> None:
        """The fork is done, and this is the parent."""
        if not self.forked:
            self.hub.go_on()

    def after_fork(self) -> None:
        """In a child: every gate shuts. No lock is taken (its holder may not exist here), nothing is closed or sent."""
        if self.forked:
            return
        if not self.used and not self._lent:
            self.hub.go_on()
            self.ctx = self._make_context()
            return
        self.forked = True
        _ORPHANS.append(self)
        for session in self.sessions.all():
            disown(session, self.now())


def check_timeout(timeout: object) -> float:
    """``timeout`` in seconds, or a ConfigError."""
    good = isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and 0 <= timeout <= 10**9
    if not good:
        raise ConfigError(field="timeout", value=timeout, expected="seconds from 0 on, or None to wait without end")
    return float(timeout)  # type: ignore[arg-type]


def _context(keys: Keys, holder: str | None, core: Core) -> Context:
    host, pid = socket.gethostname(), os.getpid()
    if holder is None:
        holder = f"{host}:{pid}:{os.urandom(4).hex()}"
    check_name(holder, "holder")
    return Context(
        keys=keys,
        holder=holder,
        host=host,
        pid=pid,
        now=core.now,
        wall=time.time,
        new_nonce=lambda: os.urandom(12).hex(),
        new_lease_id=lambda: int.from_bytes(os.urandom(8), "big"),
        sessions=core.sessions,
        accept_rewind=core.engine.accept_rewind,
    )


# What a child inherited is kept, never closed: closing would speak on the parent's connections.
_ORPHANS: list[Core] = []
