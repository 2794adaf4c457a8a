"""Storms over runs as they were, made by hand, of which everything can be told otherwise before they are judged."""

from __future__ import annotations

from typing import Any

from leasekeeper.canonical import canonical
from leasekeeper.protocol.receipt import FIRST_PREV, Draft, Writer, digest, read_receipt, seal
from leasekeeper.protocol.replay import Replay
from leasekeeper.signing import HmacKey, Keyring
from leasekeeper.testing.chaos.records import Operation, Residue, Told
from leasekeeper.testing.chaos.runs import Era, RunsStory, Sent, judge_runs
from leasekeeper.testing.chaos.runs.records import Order, Stored
from leasekeeper.testing.chaos.runs.world import DOES
from leasekeeper.testing.outside.ledger import Entry

KEY = HmacKey("chaos", b"k" * 32)
RUN = "a00000"
CENTS = 700
WALL_S = 1_700_000_000.0
STATE = {"plan": f"Done with 0 tool calls: plan {RUN}", "paid_cents": CENTS, "done": True}


class Past:
    """A storm with one run, of which everything can be told otherwise before it is judged."""

    def __init__(self) -> None:
        self.told: list[tuple[Draft, dict[str, Any]]] = []
        self.life: dict[str, Any] = {}
        self.entries: list[Entry] = []
        self.sent: list[Sent] = []
        self.owners: list[Told] = []
        self.era = Era()
        self.order = Order(RUN, CENTS)
        self.operations: list[Operation] = []
        self.status = "finished"
        self.residue = Residue()
        self.at_s = 1.0

    # -- what the run records

    def record(self, kind: str, step: str = "", **data: Any) -> None:
        """The next record, by the life of the moment."""
        draft = Draft(kind, step, canonical(data), f"{len(self.told):032x}")
        self.told.append((draft, dict(self.life)))

    def open(self, token: int, holder: str = "r0.1") -> None:
        """Another life."""
        self.life = {"token": token, "claim": f"claim-{token}", "holder": holder, "life": f"{token:032x}"}
        self.owners.append(Told(self.at_s, holder, "owner", token, f"claim-{token}", RUN))
        self.record("opened", restarts=0)

    def call(self, step: str, attempt: int = 1) -> None:
        """An intent, the call that it is for, and what the world notes of it."""
        self.at_s += 1
        kind = "before" if step == "plan" else "intent"
        self.record(kind, step, idem=f"key-{step}", attempt=attempt)
        key = "" if step in ("plan", "tip") else f"key-{step}"
        who, token = self.life["holder"], self.life["token"]
        self.sent.append(
            Sent(
                self.at_s,
                who,
                "call",
                f"order/{RUN}",
                step,
                token,
                0 if step == "tip" else attempt,
                "" if step == "tip" else f"key-{step}",
                self.at_s - 0.1,
            )
        )
        self.arrive(step, key, f"{token:019d}" if key else "")

    def arrive(self, step: str, key: str, token: str = "", *, late_s: float = 0.0, applied: bool = True) -> None:
        """A request comes to the world, and has its effect."""
        service, _, effect = DOES[step].partition(".")
        number = len(self.entries) + 1
        at_ms = int((WALL_S + self.at_s + late_s) * 1000) + 10
        subject = self.order.buyer if step == "mail" else RUN
        self.entries.append(Entry(number, at_ms, "received", number, service, effect, subject, key, token))
        if applied:
            data = {"claim": f"claim-{int(token or 0)}"}
            self.entries.append(
                Entry(number + 1, at_ms, "applied", number, service, effect, subject, key, token, data=data)
            )

    def done(self, step: str, **data: Any) -> None:
        """Its outcome."""
        self.record("outcome", step, attempt=1, adopted=False, **data)

    def all(self) -> Past:
        """A whole life without trouble."""
        self.open(5)
        for step in DOES:
            self.call(step)
            self.done(step)
        self.finish()
        return self

    def finish(self) -> None:
        """The state, the phase and the end."""
        told: dict[str, Any] = {
            "data": STATE,
            "min_reader": 1,
            "n": 1,
            "name": "state",
            "schema": "order",
            "version": 1,
        }
        self.record("checkpoint", **told)
        self.record("phase", name="order", n=1, to="done")
        self.record("finished")

    # -- what is judged

    def story(self) -> RunsStory:
        """The storm."""
        prev, fold = FIRST_PREV, Replay()
        keys: dict[str, Stored] = {}
        for seq, (draft, life) in enumerate(self.told, 1):
            operator = draft.kind == "resolved"
            writer = Writer(
                workflow="order",
                id=RUN,
                gen=1,
                namespace_id="0b" * 16,
                key=KEY,
                **({"token": 0, "claim": "", "holder": "desk", "life": "f" * 32} if operator else life),
            )
            stored = writer.seal(draft, seq=seq, prev=prev, at_ms=int(WALL_S * 1000) + seq)
            prev = digest(stored)
            fold.add(read_receipt(stored, "it"))
            keys[f"order/{RUN}/r/{seq:012d}"] = Stored(stored, 10 * seq, 10 * seq, 1)
        body = {"seq": len(self.told), "hash": prev, "status": self.status, "doubts": []}
        keys[f"order/{RUN}/head"] = Stored(seal(canonical(body), None), 10, 10, 1)
        for step, state in fold.state()["steps"].items():
            keys[f"order/{RUN}/step/{step}"] = Stored(seal(canonical({"state": state}), None), 10, 10, 1)
        for name, kept in fold.checkpoint_bytes().items():
            keys[f"order/{RUN}/ck/{name}"] = Stored(kept, 10, 10, 1)
        self.era.keys = keys
        return RunsStory(
            seed=1,
            ttl_s=3.0,
            replicas=2,
            seconds=30.0,
            calm_s=30.0,
            end_s=40.0,
            workload="runs",
            wall_s=WALL_S,
            told=self.owners,
            sent=self.sent,
            ledger=self.entries,
            orders={RUN: self.order},
            eras=[self.era],
            operations=self.operations,
            residue=self.residue,
            ring=Keyring(KEY),
        )

    def violations(self) -> str:
        """What is found, as one text."""
        return "\n".join(judge_runs(self.story()).violations)


def two_lives() -> Past:
    """The first life is killed with the charge made and not recorded; the second adopts it and goes on."""
    past = Past()
    past.open(5)
    past.call("plan")
    past.done("plan")
    past.call("charge")
    past.at_s += 5
    past.open(9, "r1.1")
    past.record("outcome", "charge", attempt=1, adopted=True)
    for step in ("mail", "config", "tip"):
        past.call(step)
        past.done(step)
    past.finish()
    return past
