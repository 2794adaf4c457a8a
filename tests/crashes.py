"""Steps that are killed: one run for each way in which an effect can be helped, and what must become of each.

Shared by the program that is killed (`tests.programs.crasher`) and by the tests, which judge by the outside world's ledger and by
etcd's own keys, never by what the program says of itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from leasekeeper import Keeper, LeasekeeperError
from leasekeeper.protocol.chain import Verdict, verify_chain
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.run_records import Receipt
from leasekeeper.runs.aio import AsyncRun
from leasekeeper.runs.alert import Alert
from leasekeeper.runs.anchor_file import FileAnchor
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.runs.effect import Effect
from leasekeeper.runs.run import Run
from leasekeeper.signing import HmacKey, Keyring
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import Entry, OutsideWorld
from tests.policies import LAGS, ONE_STEP, POLICIES, Policy, bare, once
from tests.program import Program
from tests.raw import RawEtcd

__all__ = [
    "KEY",
    "LAGS",
    "ONE_STEP",
    "POLICIES",
    "TEST_S",
    "WAIT_S",
    "WORKFLOW",
    "Bench",
    "Policy",
    "Story",
    "abody",
    "bare",
    "body",
    "check_attributed",
    "check_preceded",
    "lates",
    "normal",
    "once",
    "options_of",
    "short",
    "story",
    "subject_of",
    "told",
]

WORKFLOW = "crash"
KEY = HmacKey("crashes", b"only for the tests of crashes")
# How long anything may take on a machine that does much else; a test may take as long as several of it.
WAIT_S = 90.0
TEST_S = 240


@dataclass
class State:
    """What a run keeps beside its steps."""

    paid: str = ""


def options_of(policy: Policy, id_: str, directory: str) -> dict[str, Any]:
    """What a run of this policy is opened with beside the usual."""
    if policy.name == "stored":
        return {"blobs": DirectoryBlobs(directory)}
    if policy.name == "anchored":
        return {"anchors": [FileAnchor(f"{directory}/{id_}.anchor")], "durability": "drained"}
    return {}


def subject_of(policy: Policy, id_: str) -> str:
    """What the world calls a run's order."""
    return f"{id_}@example.org" if policy.where == "mail.send" else id_


def body(run: Run, policy: Policy, url: str) -> Any:
    """What every life of a run does."""
    doing = policy.make(url)
    if policy.name == "ten":
        return [run.do(f"act-{number}", doing, f"{run.id}-{number}") for number in range(10)]
    if policy.kind == "memo":
        return run.memo("act", doing, run.id)
    if policy.name != "stateful":
        return run.do("act", doing, run.id)
    state = run.checkpoint("state", State)
    result = run.do("act", doing, run.id, commit=lambda found: state.change(paid=found["id"]))
    phase = run.phase("order", {"begun": ["paid"], "paid": []})
    if phase.now() == "begun":
        phase.move("paid")
    value = run.checkpoint("state", State).value
    assert value is not None
    return {**result, "state": value.paid == result["id"], "phase": phase.now()}


async def abody(run: AsyncRun, policy: Policy, url: str) -> Any:
    """The same under asyncio, where what nothing is declared of is a coroutine function."""
    doing: Any = policy.make(url)
    if not isinstance(doing, Effect):
        plain = doing

        async def doing(subject: str) -> Any:
            return await asyncio.to_thread(plain, subject)

    if policy.kind == "memo":
        return await run.memo("act", doing, run.id)
    if policy.name != "stateful":
        return await run.do("act", doing, run.id)
    state = await run.checkpoint("state", State)
    result = await run.do("act", doing, run.id, commit=lambda found: state.change(paid=found["id"]))
    phase = await run.phase("order", {"begun": ["paid"], "paid": []})
    if await phase.now() == "begun":
        await phase.move("paid")
    value = (await run.checkpoint("state", State)).value
    assert value is not None
    return {**result, "state": value.paid == result["id"], "phase": await phase.now()}


def normal(result: Any, id_: str) -> Any:
    """A result without what differs between two orders: their names, and numbers that the callee gives out."""
    text = json.dumps(result, sort_keys=True)
    return json.loads(re.sub(r"\b(ch|mail)_\d+", r"\1", text.replace(id_, "ORDER")))


@dataclass(frozen=True)
class Bench:
    """Where a test does runs."""

    etcd: EtcdServer
    raw: RawEtcd
    namespace: str
    world: OutsideWorld
    directory: str

    @property
    def it(self) -> str:
        """The id of the run that a test is about, and its subject in the world: no other test's."""
        return f"it-{self.namespace[-10:]}"

    def program(self, policy: str, **asked: Any) -> Program:
        """A process that does runs of a policy; see `tests.programs.crasher`."""
        given = {"endpoint": self.etcd.endpoint, "namespace": self.namespace, "url": self.world.url, "policy": policy}
        given["directory"] = self.directory
        return Program("crasher", **{**given, **asked})

    def keeper(self, **asked: Any) -> Keeper:
        """A keeper in this process."""
        return Keeper(asked.pop("endpoint", self.etcd.endpoint), namespace=self.namespace, **asked)

    def life(self, keeper: Keeper, policy: str, id_: str, alerts: list[dict[str, Any]], **asked: Any) -> Any:
        """A life of a run in this process: its result, or what stopped it."""
        options = {**options_of(POLICIES[policy], id_, self.directory), **asked}
        try:
            with keeper.run(
                WORKFLOW,
                id=id_,
                signer=KEY,
                input={"order": id_},
                alert=lambda alert: alerts.append(told(alert, id_)),
                **options,
            ) as run:
                return body(run, POLICIES[policy], self.world.url)
        except LeasekeeperError as stopped:
            return stopped

    def story(self, id_: str) -> Story:
        """A run as it stands in etcd."""
        return story(self.raw, self.namespace, id_)

    def counted(self, policy: str, id_: str) -> tuple[list[Entry], list[Entry]]:
        """What was asked for a run, and what happened, as the world has written it down."""
        where, subject = POLICIES[policy].where, subject_of(POLICIES[policy], id_)
        return self.world.received(where, subject), self.world.applied(where, subject)

    def undisturbed(self, policy: str) -> Any:
        """What the step comes to when nothing happens, of a run of the id `it` with "-clean" behind it."""
        with self.keeper() as keeper:
            return normal(self.life(keeper, policy, f"{self.it}-clean", []), f"{self.it}-clean")

    def numbers(self, policy: str, id_: str) -> tuple[int, int]:
        """How often the world was asked, and how often it happened."""
        received, applied = self.counted(policy, id_)
        return len(received), len(applied)

    def bury(self) -> None:
        """Revoke the leases of processes that are surely dead, as their TTL would: nobody has to wait for it."""
        for lease_id in {claim.lease for claim in self.raw.claims(self.namespace)}:
            self.raw.revoke(lease_id)

    def mend(self) -> None:
        """End what goes wrong at the world, but for the two readers who always see the past."""
        self.world.heal()
        for lag in LAGS:
            self.world.trouble(lag)


def told(alert: Alert, id_: str) -> dict[str, Any]:
    """What is reported of an alert."""
    return {"id": id_, "kind": alert.kind, "step": alert.step, "command": alert.command}


# ---------------------------------------------------------------- what etcd has


@dataclass(frozen=True)
class Story:
    """A run as it stands in etcd, read with etcd's own means and verified offline."""

    records: list[Receipt]
    verdict: Verdict
    head: dict[str, Any]

    @property
    def kinds(self) -> list[str]:
        """What was recorded, in order."""
        return [record.kind for record in self.records]

    def of(self, *kinds: str) -> list[Receipt]:
        """The records of some kinds."""
        return [record for record in self.records if record.kind in kinds]

    @property
    def result(self) -> Any:
        """What the step came to, as it is recorded."""
        (outcome,) = self.of("outcome")
        return outcome.data["result"]


def story(raw: RawEtcd, namespace: str, id_: str, *, key: HmacKey | None = KEY, workflow: str = WORKFLOW) -> Story:
    """All that is recorded of a run; fails when its chain does not hold."""
    root = f"leasekeeper/{namespace}/run/{workflow}/{id_}/"
    stored = sorted((int(kv.key.rpartition("/")[2]), kv.value) for kv in raw.keys(f"{root}r/"))
    (head,) = [json.loads(kv.value)["body"] for kv in raw.keys(f"{root}head")]
    verdict = verify_chain(
        stored,
        head=(head["seq"], head["hash"]),
        ring=None if key is None else Keyring(key),
        run=(workflow, id_),
    )
    assert verdict.complete, verdict.why
    assert [seq for seq, _ in stored] == list(range(1, len(stored) + 1))
    return Story([read_receipt(value, str(seq)) for seq, value in stored], verdict, head)


def lates(raw: RawEtcd, namespace: str, id_: str, workflow: str = WORKFLOW) -> list[Receipt]:
    """What owners left that had lost their lease."""
    root = f"leasekeeper/{namespace}/run/{workflow}/{id_}/late/"
    return [read_receipt(kv.value, kv.key) for kv in raw.keys(root)]


def check_attributed(told_by: Story) -> None:
    """A2: Every record is of exactly one life, each of which says of itself that it began, and after whom."""
    lives = {record.life: record for record in told_by.of("opened")}
    assert len(lives) == len(told_by.of("opened"))
    before = None
    for opened in told_by.of("opened"):
        assert opened.data["previous"] == before
        before = {"life": opened.life, "token": f"{opened.token:019d}"}
    for record in told_by.records:
        if record.kind not in ("resolved", "rotated"):
            opened = lives[record.life]
            assert opened.seq <= record.seq
            assert (record.token, record.claim, record.holder) == (opened.token, opened.claim, opened.holder)


def check_preceded(told_by: Story, asked: list[Entry]) -> None:
    """A4 A18: Every request that the world has seen has its own intent before it, and all of one step carry the one key of it."""
    intents = told_by.of("intent", "before")
    assert len(asked) <= len(intents)
    for request, intent in zip(asked, intents, strict=False):
        assert intent.at_ms <= request.at_ms
    keys = {intent.data["idem"] for intent in intents}
    assert len(keys) <= 1
    assert {request.key for request in asked} - {""} <= keys
    for outcome in told_by.of("outcome"):
        assert any(intent.seq == outcome.data["intent"] < outcome.seq for intent in intents)


def short(text: str) -> str:
    """A name for a point, good in the id of a run."""
    return f"{text.replace(':', '-').replace('_', '')}-{hashlib.sha256(text.encode()).hexdigest()[:4]}"
