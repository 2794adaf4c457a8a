"""One replica of a storm over runs: a worker, and what its runs do to the outside world, a step of every policy.

=========  =====================================================================================================
``plan``   a memo: a language model is asked
``charge`` ``dedupes``, with a preflight that reads a list which may lag behind; its outcome commits a checkpoint
``mail``   ``probe``: the outbox can be believed. Written carelessly: what the service says is not looked at
``config`` ``fences`` and ``probe``: a document behind a fence
``tip``    a bare callable: nothing is known of the callee, so it is called once at most
=========  =====================================================================================================

Run by the storm. Says what happens to it as JSON lines on stdout, and notes each call in a file of its own before it is made.
Between the gate and a write it works for a moment now and then: a process that is stopped there wakes up with it in its hand.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from leasekeeper import Keeper, LeaseLost, Observed, Timing, effect
from leasekeeper.clock import boottime
from leasekeeper.run_errors import Conflict, InDoubt
from leasekeeper.runs.alert import Alert
from leasekeeper.runs.anchor_file import FileAnchor
from leasekeeper.runs.effect import Step
from leasekeeper.runs.run import Phase, Run
from leasekeeper.signing import HmacKey
from leasekeeper.testing.chaos.runs.records import WORKFLOW, Order, Sent
from leasekeeper.testing.outside.call import Refused, call

__all__ = ["PHASES", "OrderState", "asked", "main"]

PHASES = {"new": ("planned",), "planned": ("paid",), "paid": ("done",), "done": ()}
MODEL = "small-1"
CONCURRENCY = 2
EVERY_S = 1.0
RESTARTS = 4
KEY_TTL_S = 7200.0
ANSWER_S = 10.0
TIP_CENTS = 100
# A wall clock that jumps by an hour does not make an anchor useless.
SKEW_S = 10_000.0
# How often a step in doubt is asked for again while its run waits for an operator, and how long in between.
DOUBT_TRIES = 6
DOUBT_REST_S = 0.8
# What a step may be worked on between the gate and the request.
IN_HAND_S = (0.0, 0.0, 0.05, 0.3)


@dataclass(frozen=True)
class OrderState:
    """The checkpoint of a run."""

    plan: str = ""
    paid_cents: int = 0
    done: bool = False


class SlowAnchor(FileAnchor):
    """An anchor that sometimes takes its time, as a drain does: meanwhile the lease may be lost."""

    def __init__(self, path: str, chance: Random, most_s: float) -> None:
        super().__init__(path, skew_s=SKEW_S)
        self._chance = chance
        self._most_s = most_s

    def remember(self, run: str, gen: int, seq: int, hash: str, at_ms: int) -> None:  # noqa: A002 - the record's own word
        """Remember it, and be slow now and then."""
        super().remember(run, gen, seq, hash, at_ms)
        if self._chance.random() < 0.1:
            time.sleep(self._chance.uniform(0.0, self._most_s))


def asked(
    config: Mapping[str, Any], anchor: FileAnchor, alert: Callable[[Alert], object] | None = None
) -> dict[str, Any]:
    """How every run of a storm is opened."""
    return {
        "signer": HmacKey("chaos", bytes.fromhex(config["secret"])),
        "anchors": (anchor,),
        "durability": "drained",
        "restarts": RESTARTS,
        "alert": alert,
    }


class Agent:
    """A worker by its own chance."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._holder: str = config["holder"]
        self._world: str = config["world"]
        self._ttl_s: float = config["ttl_s"]
        self._zero_s: float = config["zero_s"]
        self._control = Path(config["control"])
        self._cured = Path(config["cured"])
        self._chance = Random(config["seed"])
        self._sent = Path(config["sent"], f"{self._holder}.sent").open("ab", buffering=0)  # noqa: SIM115 - until its end
        self._tongue = threading.Lock()
        self._near = threading.local()
        self._jump_s = 0.0
        self._effects = _Effects(self)

    def run(self) -> None:
        """Until the process is ended."""
        config = self._config
        timing = Timing(ttl=self._ttl_s)
        anchor = SlowAnchor(config["anchor"], self._chance, 1.5 * self._ttl_s)
        with Keeper(config["endpoints"], namespace=config["namespace"], holder=self._holder, timing=timing) as keeper:
            # Of this process's clock as leasekeeper knows it. To turn time.time itself would turn grpc's deadlines with it.
            keeper._core.ctx.wall = self._wall
            keeper._passing = self._passing
            self.say("started")
            worker = keeper.worker(
                {WORKFLOW: self._order},
                concurrency=CONCURRENCY,
                every=EVERY_S,
                **asked(config, anchor, self._alerted),
            )
            worker.run()

    # ------------------------------------------------------------ a run

    def _order(self, run: Run) -> None:
        order = Order(**run.input)
        self.say("owner", token=run.token, claim=run.lease.claim, detail=run.id)
        try:
            if order.poison and not (self._cured / run.id).exists():
                os.kill(os.getpid(), signal.SIGKILL)
            self._steps(run, order)
        except LeaseLost as lost:
            self.say("lost", token=run.token, detail=lost.reason)
            raise
        except BaseException as error:
            self.say("released", token=run.token, detail=f"{type(error).__name__}: {error}"[:300])
            raise
        self.say("released", token=run.token)

    def _steps(self, run: Run, order: Order) -> None:
        effects, given = self._effects, asdict(order)
        state = run.checkpoint("state", OrderState)
        phase = run.phase("order", PHASES)
        plan = run.memo("plan", effects.ask(run), order.id, about={"model": MODEL})
        if state.value is None:
            state.commit(plan=plan)
        _move(phase, "planned")
        self._patiently(
            lambda: run.do(
                "charge",
                effects.charge,
                given,
                commit=lambda receipt: state.change(paid_cents=receipt["amount_cents"]),
            )
        )
        _move(phase, "paid")
        with ThreadPoolExecutor(3, thread_name_prefix="leasekeeper-chaos-step") as pool:
            steps = [
                pool.submit(self._patiently, lambda: self._mail(run, given)),
                pool.submit(self._patiently, lambda: run.do("config", effects.config(run), given)),
                pool.submit(self._patiently, lambda: run.do("tip", effects.tip(run), order.id, TIP_CENTS)),
            ]
        for step in steps:
            step.result()
        state.update(lambda now: OrderState(now.plan, now.paid_cents, True) if now else OrderState(done=True))
        _move(phase, "done")

    def _mail(self, run: Run, given: dict[str, Any]) -> None:
        try:
            run.do("mail", self._effects.mail, given)
        except Conflict:
            return  # somebody else has sent it

    def _patiently(self, do: Callable[[], object]) -> object:
        """Do a step; one in doubt is asked for again while an operator may be about to resolve it."""
        for _ in range(DOUBT_TRIES):
            try:
                return do()
            except InDoubt:
                time.sleep(DOUBT_REST_S)
        return do()

    # ------------------------------------------------------------ what is noted

    def note(self, what: str, run: str, step: str, token: int, attempt: int = 0, key: str = "") -> None:
        """Note a call that is about to be made, or an alert; on its way to the disk when this returns."""
        gate_s = getattr(self._near, "gate_s", 0.0)
        sent = Sent(self._now_s(), self._holder, what, run, step, token, attempt, key, gate_s)
        self._sent.write(json.dumps(asdict(sent)).encode() + b"\n")

    def in_hand(self) -> None:
        """Work for a moment with the gate behind and the write ahead."""
        time.sleep(self._chance.choice(IN_HAND_S))

    def _alerted(self, alert: Alert) -> bool:
        self.note(f"alert {alert.kind}", alert.run, alert.step, 0)
        return True

    def _passing(self, point: str) -> None:
        """The last of these points before an effect is right before the gate."""
        if point in ("intent:reply", "before:reply", "anchor:return", "preflight:return"):
            self._near.gate_s = self._now_s()

    def say(self, what: str, **facts: Any) -> None:
        """One line on stdout."""
        line = json.dumps({"at_s": self._now_s(), "who": self._holder, "what": what, **facts})
        with self._tongue:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def ask(self, method: str, path: str, body: Any = None, *, step: Step | None = None, **more: Any) -> Any:
        """One request to the outside world."""
        timeout_s = ANSWER_S if step is None else min(ANSWER_S, max(0.1, step.remaining()))
        return call(self._world, method, path, body, timeout_s=timeout_s, **more)

    def _now_s(self) -> float:
        return boottime() - self._zero_s

    def _wall(self) -> float:
        try:
            self._jump_s = float(self._control.read_text())
        except (OSError, ValueError):
            pass
        return time.time() + self._jump_s


def _move(phase: Phase, to: str) -> None:
    """Move on unless that was done before."""
    order = list(PHASES)
    if order.index(phase.now()) < order.index(to):
        phase.move(to)


class _Effects:
    """What the steps do, and what they declare."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.charge = self._charge()
        self.mail = self._mail()

    def _noted(self, step: Step) -> None:
        self._agent.note("call", step.run, step.key, step.token, step.attempt, step.idempotency_key)

    def ask(self, run: Run) -> Callable[[Step, str], str]:
        """Ask the model."""
        agent = self._agent

        @effect
        def plan(step: Step, order_id: str) -> str:
            self._noted(step)
            body = {"model": MODEL, "user": order_id, "messages": [{"role": "user", "content": f"plan {order_id}"}]}
            answer = agent.ask("POST", "/v1/chat/completions", body, step=step)
            return str(answer["choices"][0]["message"]["content"])

        return plan

    def tip(self, run: Run) -> Callable[[str, int], Any]:
        """Charge at a till that knows no keys; a bare callable."""
        agent = self._agent

        def tip(order_id: str, cents: int) -> Any:
            agent.note("call", run.run, "tip", run.token)
            agent.in_hand()
            return agent.ask("POST", "/till/charges", {"order": order_id, "amount_cents": cents})["order"]

        return tip

    def _charge(self) -> Any:
        agent = self._agent

        @effect(dedupes=True, key_ttl=KEY_TTL_S)
        def charge(step: Step, order: dict[str, Any]) -> Any:
            self._noted(step)
            agent.in_hand()
            body = {"order": order["id"], "amount_cents": order["amount_cents"]}
            return agent.ask("POST", "/charges", body, step=step, headers=step.headers())

        @charge.preflight
        def charged(step: Step, order: dict[str, Any]) -> Observed:
            found = agent.ask("GET", "/charges", query={"order": order["id"]})["charges"]
            return Observed(found[0] if found else None, applied=bool(found), consistency="eventual")

        @charge.verify
        def paid(step: Step, order: dict[str, Any], result: Any) -> bool:
            return bool(agent.ask("GET", f"/charges/{result['id']}")["status"] == "paid")

        return charge

    def _mail(self) -> Any:
        agent = self._agent

        @effect(probe=True)
        def mail(step: Step, order: dict[str, Any]) -> Any:
            self._noted(step)
            agent.in_hand()
            letter = {"to": f"{order['id']}@example.org", "subject": order["id"], "body": "Thank you."}
            try:
                agent.ask("POST", "/mails", letter, step=step, headers=step.headers())
            except Refused:
                pass  # what a program does that does not look at the status
            return letter

        @mail.preflight
        def mailed(step: Step, order: dict[str, Any]) -> Observed:
            found = _sent(agent, order)
            return Observed(found, applied=found is not None)

        @mail.verify
        def in_outbox(step: Step, order: dict[str, Any], result: Any) -> bool:
            return _sent(agent, order) is not None

        return mail

    def config(self, run: Run) -> Any:
        """Write a document behind a fence, with the claim that the token belongs to."""
        agent = self._agent

        @effect(fences=True, probe=True)
        def config(step: Step, order: dict[str, Any]) -> Any:
            self._noted(step)
            agent.in_hand()
            headers = {**step.headers(), "Fencing-Claim": run.lease.claim}
            body = {"value": order["amount_cents"]}
            agent.ask("PUT", f"/configs/{order['id']}", body, step=step, headers=headers)
            return order["amount_cents"]

        @config.preflight
        def configured(step: Step, order: dict[str, Any]) -> Observed:
            found = _document(agent, order)
            return Observed(found, applied=found is not None)

        @config.verify
        def stands(step: Step, order: dict[str, Any], result: Any) -> bool:
            return bool(_document(agent, order) == order["amount_cents"])

        return config


def _sent(agent: Agent, order: dict[str, Any]) -> Any:
    found = agent.ask("GET", "/mails", query={"to": f"{order['id']}@example.org"})["mails"]
    return found[0] if found else None


def _document(agent: Agent, order: dict[str, Any]) -> Any:
    try:
        return agent.ask("GET", f"/configs/{order['id']}")["value"]
    except Refused as refused:
        if refused.status == 404:
            return None
        raise


def main() -> None:
    """Run until the process is ended; it is never ended politely."""
    logging.getLogger("leasekeeper").setLevel(logging.CRITICAL)
    Agent(json.loads(sys.argv[1])).run()
