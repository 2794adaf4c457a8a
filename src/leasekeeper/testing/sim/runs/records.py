"""What the judge of runs knows from etcd itself: every record as it is written, and whether it may be.

It reads the bytes, not what anybody believes. A record follows the one before it and carries its hash; it is never written
twice or over another; its writer's claim stands at that moment, under the present epoch; no life writes after its successor
has begun; no step begins under a halt, or while it is in doubt, or after the run is finished.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasekeeper.fencing import split_token
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.halt import covers
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import read_epoch, unescape
from leasekeeper.protocol.receipt import FIRST_PREV, digest, link
from leasekeeper.testing.sim.invariants import Violation
from leasekeeper.testing.sim.keeper import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leasekeeper.testing.sim.keyspace import Event, Kv
    from leasekeeper.testing.sim.runs.policies import Script
    from leasekeeper.testing.sim.store import Store

__all__ = ["Book", "Books", "Step"]

RUNS = run_keys.runs(KEYS)
HALTS = run_keys.halts(KEYS)
BEGINS = ("intent", "before")
# What a run that is finished may still have written to it: that a replay did not find what was done, and that it was told.
AFTER_THE_END = ("drift", "alerted", "failed")


@dataclass(slots=True)
class Step:
    """What the records say of one step. ``begun`` are its intents: whose life, which attempt, and their numbers."""

    state: str = "absent"
    begun: dict[tuple[str, int], int] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    value: Any = None
    word: bool = False
    doubts: int = 0
    seen: bool = False
    # Who has just said that it is in doubt: life, attempts, and name.
    doubted: tuple[str, int, str] | None = None


@dataclass(slots=True)
class Book:
    """What the records say of one run. ``tampered``: somebody has put things there by hand."""

    seq: int = 0
    hash: str = FIRST_PREV
    life: str = ""
    lives: int = 0
    status: str = ""
    steps: dict[str, Step] = field(default_factory=dict)
    nonces: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    # The steps in doubt of which somebody was told, and that is recorded; empty text for the run itself.
    told: set[str] = field(default_factory=set)
    tampered: bool = False
    # Etcd went back behind records of this run.
    forgotten: bool = False
    heads: list[bytes] = field(default_factory=list)

    def step(self, key: str) -> Step:
        """What is known of a step."""
        return self.steps.setdefault(key, Step())


class Books:
    """One book a run, kept as etcd changes."""

    def __init__(self, store: Store, scripts: Iterable[Script], told: Callable[[str, str], None]) -> None:
        self._store = store
        self._scripts = {script.run: script for script in scripts}
        self._told = told
        self.books = {run: Book() for run in self._scripts}
        # The claims that stand, by their nonces.
        self._claims: dict[str, bytes] = {}
        self._halts: set[str] = set()
        # The namespace was lost with all that it held: the secret of idempotency keys is another one since.
        self.anew = 0

    def of(self, run: str) -> Book:
        """The book of a run."""
        return self.books[run]

    def changed(self, event: Event) -> None:
        """A key was changed."""
        key = event.key
        if key.startswith(RUNS):
            run, _, rest = key[len(RUNS) :].decode().partition("/")
            which, _, rest = rest.partition("/")
            self._of_run(f"{run}/{which}", rest, event)
        elif key.startswith(KEYS.leases):
            self._of_claim(key, event.kv)
        elif key.startswith(HALTS):
            scope = unescape(key[len(HALTS) :].decode())
            (self._halts.discard if event.deleted else self._halts.add)(scope)
            self._told("etcd", f"{scope} is {'not halted any more' if event.deleted else 'halted'}")

    def halted(self, run: str) -> bool:
        """Whether a halt covers a run."""
        return any(covers(scope, run) for scope in self._halts)

    @property
    def halts(self) -> list[str]:
        """The scopes that are halted."""
        return sorted(self._halts)

    def head(self, run: str) -> Head | None:
        """The run's head in etcd."""
        key = self._scripts[run].keys.head
        kv = self._store.keys.get(key)
        return None if kv is None else read_head(kv.value, key.decode())

    # ------------------------------------------------------------ a restore

    def restored(self) -> None:
        """Etcd went back: everything is read anew."""
        self._claims, self._halts = {}, set()
        before, self.books = self.books, {run: Book() for run in self._scripts}
        identity = run_keys.identity(KEYS) in self._store.keys
        if not identity and any(book.seq for book in before.values()):
            self.anew += 1
        for kv in sorted(self._store.keys.values(), key=lambda kv: (kv.mod_revision, kv.key)):
            if kv.key.startswith(KEYS.leases):
                self._of_claim(kv.key, kv)
            elif kv.key.startswith(HALTS):
                self._halts.add(unescape(kv.key[len(HALTS) :].decode()))
        for run, script in self._scripts.items():
            book = self.books[run]
            for kv in self._store.found(script.keys.records, script.keys.records[:-1] + b"0"):
                self._take(book, run, kv.value, checked=False)
            was = before[run]
            book.forgotten = was.forgotten or (was.seq, was.hash) != (book.seq, book.hash)
            book.tampered = was.tampered
            for key, step in was.steps.items():
                book.step(key).keys |= step.keys if not self.anew else set()
                book.step(key).begun |= step.begun

    # ------------------------------------------------------------ keys

    def _of_claim(self, key: bytes, kv: Kv | None) -> None:
        if kv is None:
            self._claims = {nonce: each for nonce, each in self._claims.items() if each != key}
        elif kv.value:
            self._claims[json.loads(kv.value)["nonce"]] = key

    def _of_run(self, run: str, rest: str, event: Event) -> None:
        book = self.books[run]
        if event.kv is None:
            return
        if rest.startswith("r/"):
            if event.kv.version != 1 and not book.tampered:
                raise Violation("records", f"a record of {run} was written over: {rest}", ())
            if event.kv.version != 1:
                raise Violation(
                    "records", f"a record of {run} was written over where its head had gone back: {rest}", ()
                )
            self._take(book, run, event.kv.value, checked=True)
        elif rest == "head":
            book.heads.append(event.kv.value)
            head = read_head(event.kv.value, rest)
            book.status = head.status
            if (head.seq, head.hash) != (book.seq, book.hash) and not book.tampered:
                raise Violation("records", f"the head of {run} names record {head.seq}, the last one is {book.seq}", ())

    # ------------------------------------------------------------ records

    def _take(self, book: Book, run: str, stored: bytes, *, checked: bool) -> None:
        body = json.loads(stored)["body"]
        kind, step, life, who = body["kind"], body["step"], body["life"], body["holder"]
        prev, seq = link(stored)
        if (prev, seq) != (book.hash, book.seq + 1) and not book.tampered:
            text = f"record {seq} of {run}, {kind}, by {who}, does not follow record {book.seq}: the chain is broken"
            raise Violation("records", text, (who,))
        book.seq, book.hash = seq, digest(stored)
        if body["nonce"] in book.nonces:
            text = f"record {seq} of {run}, {kind} {step!r}, is one that was there already: written twice by {who}"
            raise Violation("records", text, (who,))
        book.nonces.add(body["nonce"])
        if checked:
            self._told(who, f"{run}: record {seq}, {kind}{' ' + step if step else ''}")
            self._check_writer(book, run, body)
        if kind == "opened":
            book.life = life
            book.lives += 1
            book.written[life] = seq
        self._of_step(book, run, body, checked=checked)
        book.counts[kind] = book.counts.get(kind, 0) + 1

    def _check_writer(self, book: Book, run: str, body: dict[str, Any]) -> None:
        kind, life, claim, who = body["kind"], body["life"], body["claim"], body["holder"]
        epoch = read_epoch([self._store.keys[KEYS.epoch]] if KEYS.epoch in self._store.keys else [])
        if not claim:
            return  # an operator
        if claim not in self._claims:
            raise Violation("fence", f"{who} wrote {kind} to {run}, and its claim is gone", (who,))
        if split_token(int(body["token"]))[0] != epoch.number:
            raise Violation("fence", f"{who} wrote {kind} to {run} under an epoch that was raised", (who,))
        # A run that is put aside is not opened, and somebody is told of it all the same.
        begun = kind in ("opened", "rotated") or (kind == "alerted" and book.status == "quarantined")
        if not begun and life != book.life:
            raise Violation("fence", f"{who} wrote {kind} to {run} after its successor had begun", (who,))

    def _of_step(self, book: Book, run: str, body: dict[str, Any], *, checked: bool) -> None:
        kind, data, who = body["kind"], body["data"], body["holder"]
        if book.counts.get("finished") and kind not in AFTER_THE_END and checked and not book.tampered:
            raise Violation("order", f"{who} wrote {kind} to {run}, which is finished", (who,))
        if kind in ("in_doubt", "quarantined"):
            book.told.discard(body["step"])
        elif kind == "alerted":
            book.told.add(body["step"])
        if not body["step"]:
            self._of_state(book, run, kind, data, who)
            return
        step = book.step(body["step"])
        if kind in BEGINS:
            self._begins(run, step, body, checked=checked)
        elif kind in ("outcome", "raised", "in_doubt"):
            self._settles(run, step, body)
            self._of_state(book, run, kind, data, who)
        elif kind == "resolved":
            step.state = "done" if data["applied"] else "cleared"
            step.value, step.word = data["result"], True
        elif kind == "conflict":
            step.state = "conflict"

    def _begins(self, run: str, step: Step, body: dict[str, Any], *, checked: bool) -> None:
        kind, who, data = body["kind"], body["holder"], body["data"]
        if checked and self.halted(run):
            raise Violation("halt", f"{who} began {body['step']!r} of {run} under a halt", (who,))
        if step.state in ("done", "in_doubt", "conflict"):
            raise Violation("order", f"{who} began {body['step']!r} of {run}, which is {step.state}", (who,))
        step.state = "intent"
        step.begun[body["life"], data["attempt"]] = body["seq"]
        step.keys.add(data["idem"])
        if len(step.keys) > 1 and kind == "intent":
            raise Violation("one key", f"step {body['step']!r} of {run} has a second idempotency key", (who,))

    def _settles(self, run: str, step: Step, body: dict[str, Any]) -> None:
        kind, who, data = body["kind"], body["holder"], body["data"]
        if data["intent"] not in step.begun.values():
            raise Violation("order", f"{who} wrote {kind} for {body['step']!r} of {run}, which was never begun", (who,))
        if step.state == "done":
            raise Violation("order", f"{who} wrote {kind} for {body['step']!r} of {run}, which is done", (who,))
        if kind == "outcome":
            step.state, step.value = "done", data.get("result")
        elif kind == "in_doubt":
            step.state = "in_doubt"
            step.doubts += 1
            step.doubted = body["life"], len(step.begun), who
        elif data["applied"] is False:
            step.state = "cleared"

    def _of_state(self, book: Book, run: str, kind: str, data: dict[str, Any], who: str) -> None:
        """Checkpoints and phases count on by one."""
        told = data if kind in ("checkpoint", "phase") else data.get("checkpoint") if kind == "outcome" else None
        if told is None:
            return
        name = told["name"]
        if told["n"] != book.counts.get(f"ck {name}", 0) + 1:
            raise Violation("states", f"{who} made state {told['n']} of {name!r} of {run} a second time", (who,))
        book.counts[f"ck {name}"] = told["n"]
