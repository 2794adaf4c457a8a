"""A run as its owner holds it: what is the same under threads and asyncio."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from leasekeeper.canonical import TooMuch, canonical
from leasekeeper.errors import ConfigError, LeasekeeperError, LeaseLost, Misuse, StaleToken
from leasekeeper.fencing import split_token
from leasekeeper.protocol import step as steps
from leasekeeper.protocol.conduct import Conduct, Invoke, Talk, Tell
from leasekeeper.protocol.gate import check_need
from leasekeeper.protocol.guarded import Ownership
from leasekeeper.protocol.history import last
from leasekeeper.protocol.incarnation import Calls, Incarnation, Spec
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.protocol.opening import open_run
from leasekeeper.protocol.outcome import ABOUT_MAX
from leasekeeper.protocol.receipt import digest
from leasekeeper.protocol.recorded import Recorded
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.protocol.stop import entered
from leasekeeper.run_errors import InDoubt, NotSerialisable, RecordTooLarge, RunHalted, RunRewound
from leasekeeper.runs.alert import Alert, command_for, log_alert, sound
from leasekeeper.runs.effect import Step, as_effect
from leasekeeper.runs.marks import Marks, marks, warn_of_silence
from leasekeeper.runs.options import opening
from leasekeeper.runs.spool import Spool
from leasekeeper.runtime.appending import Queue
from leasekeeper.runtime.conduct import nowhere
from leasekeeper.runtime.core import observers
from leasekeeper.runtime.events import AlertGiven, RecordDelayed, RunEnded, RunOpened, RunQuarantined, StepPassed

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.checkpoint import Change
    from leasekeeper.protocol.conduct import Alarm
    from leasekeeper.protocol.delay import Delay
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.runs.effect import Effect
    from leasekeeper.runs.options import RunOptions
    from leasekeeper.runtime.conduct import Passing
    from leasekeeper.runtime.held import Held

__all__ = ["Owned", "entering"]

log = logging.getLogger("leasekeeper")

OPEN_S = 30.0
NO_ARGS = digest(b"[]")
Verify = Literal["always", "recorded"]


class Owned:
    """An owned run. Usable from any thread; what is decided is decided on what etcd says at that moment."""

    __slots__ = (
        "__weakref__",
        "_anchoring",
        "_began_s",
        "_life",
        "_met_halt",
        "_options",
        "_passing",
        "_read",
        "lease",
    )

    lease: Any
    # Whether what it calls may be a coroutine function.
    _awaits = False

    def __init__(self, lease: Held, life: Incarnation, options: RunOptions, passing: Passing = nowhere) -> None:
        self.lease = lease
        self._life = life
        self._options = options
        self._passing = passing
        self._anchoring = threading.Lock()
        self._began_s = lease._now()
        self._met_halt = False
        self._read = life.log.head.status == "finished"
        if options.anchors:
            life.anchor, life.drained = self._remember, options.durability == "drained"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run} gen={self.gen} {self.lease.state.value}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle or copy {self!r}: open the run where it is to go on")

    # ------------------------------------------------------------ facts

    @property
    def run(self) -> str:
        """``workflow/id``, with "/" in either written as %2F."""
        return self._life.log.run

    @property
    def workflow(self) -> str:
        """What kind of run it is."""
        return self._options.name.workflow

    @property
    def id(self) -> str:
        """Which one of its workflow."""
        return self._options.name.id

    @property
    def gen(self) -> int:
        """The generation: 1, or more for an id that was used again after pruning."""
        return self._life.log.head.gen

    @property
    def input(self) -> Any:
        """What the run was begun with; None when nothing was given."""
        return json.loads(self._life.opened.meta.input)

    @property
    def token(self) -> int:
        """The fencing token of the lease that owns the run."""
        token: int = self.lease.token
        return token

    @property
    def resumed(self) -> bool:
        """Whether it was begun before this life."""
        return not self._life.opened.fresh

    # ------------------------------------------------------------ steps

    def _doing(
        self,
        key: str,
        given: object,
        args: tuple[Any, ...],
        *,
        kind: Literal["do", "memo"],
        verify: Verify | None = None,
        need: float | None = None,
        about: object = None,
        commit: Callable[[Any], Change] | None = None,
    ) -> Conduct[Any]:
        """A step, checked; nothing was sent when it is refused."""
        check_name(key, "key")
        effect = as_effect(given)
        effect.check()
        if not self._awaits and (part := effect.awaited()):
            raise Misuse(f"the {part} of step {key!r} is a coroutine function: use AsyncKeeper, or a plain function")
        if verify not in (None, "always", "recorded"):
            raise ConfigError(field="verify", value=verify, expected="'always' or 'recorded'")
        spec = self._spec(key, effect, args, kind, verify or self._options.verify, need, about)
        calls = Calls(
            handle=lambda pointer: self._handle(key, pointer, effect.help.spool_every_s),
            effect=effect.call(args),
            preflight=effect.asking(args),
            verify=effect.verifying(args),
            checkpoint=commit,
            last_word=lambda handle: handle._spool.last_word(),
        )
        self.lease._check_not_over()
        check_need(self.lease._authority, spec.need_s)
        return steps.do(self._life, spec, calls)

    def _spec(
        self,
        key: str,
        effect: Effect,
        args: tuple[Any, ...],
        kind: Literal["do", "memo"],
        verify: Verify,
        need: float | None,
        about: object,
    ) -> Spec:
        help_ = effect.help
        return Spec(
            key=key,
            kind=kind,
            effect=effect.name,
            helps=help_.helps,
            args=digest(_json(list(args), "args")) if args else NO_ARGS,
            about=b"null" if about is None else canonical(about, "about", big="text", most=ABOUT_MAX),
            key_ttl_s=help_.key_ttl_s,
            preflight_max_age_s=help_.preflight_max_age_s,
            need_s=help_.need_s if need is None else need,
            settle_s=help_.settle_s,
            verify=verify,
            drift=help_.drift,
        )

    def _handle(self, key: str, pointer: Pointer, spool_every_s: float) -> Step:
        spool = Spool(self.lease, self._life, key, pointer, spool_every_s)
        return Step(self.lease, self.run, key, pointer, spool, awaits=self._awaits)

    # ------------------------------------------------------------ telling

    def _tell(self, told: Tell) -> None:
        halt_s = self._first_met(told.halt_s) if told.what == "halted" else None
        if observers:
            passed = StepPassed(
                self.run,
                told.step,
                told.kind,
                told.what,
                told.repeated,
                told.window_s,
                told.took_s,
                halt_s,
                self.lease.claim,
                told.accepted,
                told.why,
            )
            self.lease._core.observe(passed)

    def _first_met(self, halt_s: float | None) -> float | None:
        """How old a halt is that was made while this life was under way, and is met for the first time."""
        first, self._met_halt = not self._met_halt, True
        within = halt_s is not None and halt_s <= self.lease._now() - self._began_s
        return max(0.0, halt_s) if first and within and halt_s is not None else None

    def _tell_quarantined(self, life: str) -> None:
        """Tell that the run was put aside, if ``life`` was the one too many."""
        head = self._life.log.head
        if observers and head.status == "quarantined" and head.life == life:
            self.lease._core.observe(RunQuarantined(self.run, head.restarts))

    def _tell_opened(self) -> None:
        """Tell that a life began; whoever calls this tells of its end as well."""
        if observers:
            how: Literal["begun", "resumed", "read"] = "read" if self._read else "resumed" if self.resumed else "begun"
            restarts = self._life.log.head.restarts
            self.lease._core.observe(RunOpened(self.run, self._life.log.mine.token, self.lease.claim, how, restarts))

    def _tell_ended(self, error: BaseException | None, *, left: bool = False) -> None:
        """Tell that a life ended, and how."""
        if observers:
            how = "left" if left else "read" if self._read and error is None else _ending(error)
            lived_s = self.lease._now() - self._began_s
            self.lease._core.observe(RunEnded(self.run, self._life.log.mine.token, self.lease.claim, how, lived_s))

    def _alarm(self, told: Alarm) -> bool:
        """Whether somebody was told; without a hook the log is who is told."""
        alert = Alert(
            kind=told.kind,
            run=self.run,
            step=told.step,
            why=told.why,
            seq=told.seq,
            holder=self.lease.holder,
            command=command_for(told.kind, self.run, told.step),
        )
        log_alert(alert)
        hook = self._options.alert
        passed_on = True if hook is None else sound(alert, (hook,))
        if observers:
            self.lease._core.observe(AlertGiven(self.run, told.step, told.kind, passed_on))
        return passed_on

    def _remember(self) -> None:
        """Have the present head remembered by every anchor; where steps need not wait for that, a failure is logged."""
        with self._anchoring:
            head = self._life.log.head
            for anchor in self._options.anchors:
                try:
                    anchor.remember(self.run, head.gen, head.seq, head.hash, head.at_ms)
                except RunRewound:
                    raise
                except (LeasekeeperError, OSError) as error:
                    if self._life.drained:
                        raise
                    log.warning("run %s: an anchor could not be told of record %d: %s", self.run, head.seq, error)


def _ending(error: BaseException | None) -> Literal["finished", "failed", "halted", "in_doubt", "lost"]:
    match error:
        case None:
            return "finished"
        case RunHalted():
            return "halted"
        case InDoubt():
            return "in_doubt"
        case LeaseLost() | StaleToken():
            return "lost"
    return "failed"


def _json(value: object, what: str) -> bytes:
    try:
        return canonical(value, what, big="text", most=VALUE_MAX)
    except TooMuch:
        told = f"{what} takes more than {VALUE_MAX} bytes of JSON: hand over where the bulk is kept"
        raise RecordTooLarge(told, what=what, size=VALUE_MAX + 1, most=VALUE_MAX) from None
    except ConfigError as error:
        raise NotSerialisable(field=error.field, value=error.value, expected=error.expected) from None


def entering(lease: Held, options: RunOptions, make: Callable[[Incarnation], Any]) -> Conduct[Any]:
    """Open a run whose lease was just acquired: the object that ``make`` makes of its life."""
    core = lease._core
    keys = RunKeys(core.ctx.keys, options.name)
    mine = Ownership(lease.name, lease.token, lease.key.encode(), split_token(lease.token)[1])
    begun = opening(options, claim=lease.claim, lease_id=lease.lease_id, host=core.ctx.host, pid=core.ctx.pid)
    told = Marks()
    if options.anchors:
        found = yield Talk(last(core.ctx, keys, core.now() + OPEN_S), "look")
        gen = found[0].gen if found else options.generation or 1
        told = yield Invoke(lambda: marks(options.anchors, options.name.text, gen), "anchor")
        begun = replace(begun, marks=told.known, anchors=told.files)
    plan = open_run(
        core.ctx,
        keys,
        mine,
        begun,
        line=Queue(partial(_delayed, lease, options.name.text)),
        alive=lambda: not lease.state.final,
        until=core.now() + OPEN_S,
    )
    opened = yield Talk(plan, "open")
    if not opened.fresh:
        warn_of_silence(options.name.text, opened.log.head, told)
    recorded = Recorded(0 if opened.fresh else opened.log.head.seq)
    life = Incarnation(opened, recorded, options.blobs, options.quota)
    run = make(life)
    run._tell_quarantined(begun.life)
    yield from entered(life)
    run._tell_opened()
    return run


def _delayed(lease: Held, run: str, delay: Delay) -> None:
    """Tell later and elsewhere: whoever adds to the run waits for the one that is here, and an observer may be slow."""
    if observers:
        core = lease._core
        why = str(core.engine.public(delay.fault))
        told = RecordDelayed(run, delay.step, delay.kind, delay.how, delay.in_a_row, delay.waited_s, why, lease.claim)
        core.observe_soon(told)
