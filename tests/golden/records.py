"""The formats of runs as the first release writes them: each with its value, how it is written, and how it is read.

``python -m tests.golden.write`` writes the files of a release that are missing; nothing here depends on time, chance or machine.
What a record of each kind holds is spelled out here, not made by the code that makes it: that is what the code is held against.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.bundle import Blob, Header, Record
from leasekeeper.protocol.halt import Halt, halts
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.identity import Identity, idempotency_key, read_identity
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.meta import Meta, meta_body, read_meta
from leasekeeper.protocol.outcome import PIECE
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.prune import Tomb, read_tomb
from leasekeeper.protocol.receipt import FIRST_PREV, Draft, Writer, digest, plain, read_receipt, seal
from leasekeeper.protocol.run_keys import RunKeys, RunName, identity
from leasekeeper.protocol.run_keys import halts as halts_prefix
from leasekeeper.protocol.schema import Envelope, read_envelope, seal_envelope
from leasekeeper.run_records import Receipt
from leasekeeper.runs.anchored import FIRST, Anchored, read_line, write_line
from leasekeeper.runs.export import read_export, write_export
from leasekeeper.signing import Ed25519Key, HmacKey, SigningKey

AT_MS = 1_700_000_000_000
NAMESPACE_ID = "0b" * 16
SECRET = "5e" * 32
LIFE = "1f" * 16
CLAIM = "c1" * 12
RUN = RunName("order", "a/b 42")
TOKEN = 2**44 + 17
INPUT = b'{"order":"a/b 42","total":"9007199254740993"}'
ARGS = "a0" * 32
IDEM = "1d" * 16
TEXT = 'line\nend, "quoted", \u20ac, \U0001f600'
LARGE = (b'"' + b"0123456789" * 60_000 + b'"')[:600_000]


def keys() -> dict[str, SigningKey | None]:
    """The keys of the fixtures; Ed25519 needs the extra."""
    return {
        "unsigned": None,
        "hmac": HmacKey("golden-hmac", b"golden secret, not kept anywhere"),
        "ed25519": Ed25519Key("golden-ed25519", b"golden seed of thirty-two bytes!"),
    }


# ---------------------------------------------------------------- records

SEEN = {"applied": False, "as_of": None, "consistency": "strong", "digest": "5d" * 32, "value": {"found": None}}
STATE = {"data": {"paid": 1}, "min_reader": 1, "n": 2, "name": "state", "schema": "OrderState", "version": 3}
ABOUT = {"model": "m-1", "temperature": "0.5"}
INTENT = {
    "about": None,
    "args": ARGS,
    "attempt": 1,
    "effect": "shop.charge",
    "helps": "dedupes probe",
    "idem": IDEM,
    "key_ttl_s": 86400,
    "pre": SEEN,
}
OUTCOME = {
    "about": None,
    "adopted": False,
    "args": ARGS,
    "attempt": 1,
    "checkpoint": None,
    "digest": "d0" * 32,
    "intent": 2,
    "ms": 120,
    "post": "verified",
    "result": {"id": "ch_1", "text": TEXT},
}
OPENED = {
    "boot_id": "b0" * 16,
    "host": "host-1",
    "image": "shop@sha256:1",
    "input": hashlib.sha256(INPUT).hexdigest(),
    "lease": "69f25c0a66cc53bd",
    "pid": 4711,
    "pod_uid": "pod-1",
    "previous": None,
    "restarts": 0,
    "started_at": AT_MS - 1000,
    "version": "0.1.0",
}
WITHOUT_RESULT = {name: value for name, value in OUTCOME.items() if name != "result"}
RESOLVED = {
    "applied": True,
    "args": ARGS,
    "by": "operator",
    "evidence": "seen at the bank",
    "intent": 9,
    "result": {"id": "ch_2"},
    "rewound": [],
}

# Step, kind and what it says, in the order of a run's life.
RECORDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("", "opened", OPENED),
    ("charge", "intent", INTENT),
    ("charge", "outcome", OUTCOME),
    ("plan", "before", {**INTENT, "about": ABOUT, "helps": "", "key_ttl_s": 0, "pre": None}),
    ("plan", "note", {"intent": 4, "n": 1, "partial": "so far", "size": 6}),
    ("plan", "outcome", {**OUTCOME, "about": ABOUT, "checkpoint": STATE, "intent": 4, "post": "unverified"}),
    ("", "checkpoint", STATE),
    ("", "phase", {"from": "staged", "n": 1, "name": "ca", "to": "distributed"}),
    ("refund", "intent", INTENT),
    (
        "refund",
        "raised",
        {"applied": None, "asking": "effect", "intent": 9, "text": "timed out", "type": "TimeoutError"},
    ),
    ("refund", "in_doubt", {"args": ARGS, "intent": 9, "why": "nobody knows"}),
    ("refund", "alerted", {"kind": "in_doubt"}),
    ("refund", "resolved", RESOLVED),
    ("", "resolved", {**RESOLVED, "args": "", "intent": 0, "rewound": [{"hash": "4a" * 32, "seq": 20}]}),
    ("report", "outcome", {**WITHOUT_RESULT, "blob": {"digest": "b1" * 32, "size": 600_000}}),
    ("note", "outcome", {**WITHOUT_RESULT, "digest": "", "refused": {"kind": "type", "why": "no JSON"}}),
    ("mail", "conflict", {"args": ARGS, "pre": {**SEEN, "applied": True}}),
    ("charge", "drift", {"accepted": False, "outcome": 3}),
    ("", "rotated", {"from": "", "public": "", "to": ""}),
    ("", "failed", {"text": "no route", "type": "OSError"}),
    ("", "quarantined", {"restarts": 11}),
    ("", "finished", {}),
)


def receipts(key: SigningKey | None) -> list[bytes]:
    """A chain with each kind of record; no run would do just this."""
    writer = Writer(
        workflow=RUN.workflow,
        id=RUN.id,
        gen=2,
        namespace_id=NAMESPACE_ID,
        token=TOKEN,
        claim=CLAIM,
        holder="host-1:4711",
        life=LIFE,
        key=key,
    )
    stored: list[bytes] = []
    prev = FIRST_PREV
    for seq, (step, kind, data) in enumerate(RECORDS, 1):
        draft = Draft(kind, step, plain(data), f"{seq:024x}")
        stored.append(writer.seal(draft, seq=seq, prev=prev, at_ms=AT_MS + seq))
        prev = digest(stored[-1])
    return stored


def check_receipt(seq: int, found: Receipt, key: SigningKey | None) -> None:
    """Assert that a record says what it was given."""
    step, kind, data = RECORDS[seq - 1]
    assert (found.step, found.kind, found.data) == (step, kind, data)
    assert (found.run, found.workflow, found.id) == ("order/a%2Fb 42", RUN.workflow, RUN.id)
    assert (found.gen, found.seq, found.at_ms, found.token) == (2, seq, AT_MS + seq, TOKEN)
    assert (found.claim, found.holder, found.life) == (CLAIM, "host-1:4711", LIFE)
    assert (found.nonce, found.namespace_id) == (f"{seq:024x}", NAMESPACE_ID)
    assert found.key_id == ("" if key is None else key.key_id)


# ---------------------------------------------------------------- single values

META = Meta(2, INPUT, AT_MS, "host-1:4711", LIFE)
HEAD = Head(
    gen=2,
    seq=22,
    hash="4e" * 32,
    status="in_doubt",
    token=TOKEN,
    holder=TEXT,
    life=LIFE,
    at_ms=AT_MS,
    done=3,
    restarts=2,
    doubts=("refund", "mail"),
    due=("mail",),
    key_id="golden-hmac",
    size=12_345,
)
STEP = Pointer("do", "in_doubt", ARGS, IDEM, "shop.charge", AT_MS, 9, 11, 2)
TOMB = Tomb(2, 22, "4e" * 32, AT_MS + 86_400_000, "operator", AT_MS)
HALT = Halt("order/*", TEXT, "operator", AT_MS, 7)
PHASE = Envelope("leasekeeper.phase", 1, 1, 2, 8, {"phase": "distributed"})
KEYS = RunKeys(Keys("golden"), RUN)
LATE = Draft("outcome", "refund", plain({**OUTCOME, "intent": 9}), "7e" * 12)


def _kv(stored: bytes) -> pb.KeyValue:
    return pb.KeyValue(key=b"it", value=stored)


def _meta() -> bytes:
    body = {"at": AT_MS, "by": META.by, "gen": 2, "id": RUN.id, "life": LIFE, "v": 1, "wf": RUN.workflow}
    return seal(meta_body(body, INPUT), None)


def _identity() -> bytes:
    return seal(plain({"secret": SECRET, "uuid": NAMESPACE_ID, "v": 1}), None)


def _halt() -> bytes:
    return seal(plain({"at": AT_MS, "by": HALT.by, "reason": HALT.reason, "v": 1}), None)


def _read_halt(stored: bytes) -> Halt:
    return halts([pb.KeyValue(key=b"halt/order%2F*", value=stored, mod_revision=7)], b"halt/")[0]


def _phase() -> bytes:
    return seal_envelope(PHASE)


def _read_phase(stored: bytes) -> tuple[Any, ...]:
    found = read_envelope(stored, "it")
    return found.schema, found.version, found.min_reader, found.n, found.seq, found.data


def _late() -> bytes:
    writer = Writer(
        workflow=RUN.workflow,
        id=RUN.id,
        gen=2,
        namespace_id=NAMESPACE_ID,
        token=TOKEN,
        claim=CLAIM,
        holder="host-1:4711",
        life=LIFE,
    )
    return writer.seal(LATE, seq=9, prev="4e" * 32, at_ms=AT_MS)


def _read_late(stored: bytes) -> tuple[Any, ...]:
    found = read_receipt(stored, "it")
    return found.seq, found.kind, found.step, found.prev, found.data["result"]


@dataclass(frozen=True, slots=True)
class Format:
    """One stored format: the bytes as they are written now, how they are read, and what must come of that."""

    write: Callable[[], bytes]
    read: Callable[[bytes], Any]
    value: Any


FORMATS: dict[str, Format] = {
    "meta": Format(_meta, lambda stored: read_meta(stored, "it"), META),
    "head": Format(HEAD.stored, lambda stored: read_head(stored, "it"), HEAD),
    "step": Format(STEP.stored, lambda stored: read_pointer(_kv(stored)), STEP),
    "identity": Format(
        _identity,
        lambda stored: read_identity(stored, "it"),
        Identity(NAMESPACE_ID, bytes.fromhex(SECRET), _identity()),
    ),
    "halt": Format(_halt, _read_halt, HALT),
    "tomb": Format(TOMB.stored, lambda stored: read_tomb(_kv(stored)), TOMB),
    "phase": Format(_phase, _read_phase, ("leasekeeper.phase", 1, 1, 2, 8, {"phase": "distributed"})),
    "late": Format(_late, _read_late, (9, "outcome", "refund", "4e" * 32, OUTCOME["result"])),
}


# ---------------------------------------------------------------- files


def export(key: SigningKey | None) -> bytes:
    """The export of a chain: header, records, a large value, footer."""
    stored = receipts(key)
    header = Header(
        workflow=RUN.workflow,
        id=RUN.id,
        namespace_id=NAMESPACE_ID,
        gen=2,
        exported_at_ms=AT_MS,
        meta=_meta(),
        head=HEAD._replace(hash=digest(stored[-1]), status="finished").stored(),
    )
    lines: list[Record | Blob] = [Record(seq, each) for seq, each in enumerate(stored, 1)]
    lines.insert(15, Blob(digest(b'"large"'), b'"large"'))
    target = io.BytesIO()
    write_export(target, header, lines, key)
    return target.getvalue()


def read_back(data: bytes) -> tuple[Header, list[Record | Blob], int]:
    """Header, lines and the footer's count."""
    found = read_export(io.BytesIO(data))
    lines = list(found)
    return found.header, lines, found.footer.count


ANCHORED = (
    Anchored("order/a%2Fb 42", 2, 3, "4a" * 32, AT_MS),
    Anchored("order/\u20ac", 1, 1, "4b" * 32, AT_MS + 1),
    Anchored("order/a%2Fb 42", 2, 2, "4c" * 32, AT_MS + 2, back=True),
)


def anchor() -> bytes:
    """The file of an anchor."""
    lines: list[bytes] = []
    before = FIRST
    for each in ANCHORED:
        lines.append(write_line(each, before))
        line = read_line(lines[-1])
        assert line is not None
        before = line.sum
    return b"".join(line + b"\n" for line in lines)


def names() -> bytes:
    """How keys are spelled, which pieces a large value is cut into, and what an idempotency key comes from."""
    digest_of = hashlib.sha256(LARGE).hexdigest()
    spelled = {
        "identity": identity(KEYS.keys),
        "meta": KEYS.meta,
        "head": KEYS.head,
        "record": KEYS.record(42),
        "step": KEYS.step("a/b %\u20ac"),
        "checkpoint": KEYS.checkpoint("a/b"),
        "checkpoint before": KEYS.checkpoint_before("a/b", 2),
        "late": KEYS.late(42, "7e" * 12),
        "piece": KEYS.blob(digest_of, 3),
        "unfinished": KEYS.unfinished,
        "halts": halts_prefix(KEYS.keys),
        "tomb": KEYS.tomb,
    }
    told = {
        "keys": {name: key.decode() for name, key in spelled.items()},
        "lease": RUN.lease,
        "idempotency key": idempotency_key(bytes.fromhex(SECRET), RUN, 2, "charge"),
        "large": {"digest": digest_of, "size": len(LARGE), "piece": PIECE},
    }
    return json.dumps(told, ensure_ascii=False, indent=1, sort_keys=True).encode()
