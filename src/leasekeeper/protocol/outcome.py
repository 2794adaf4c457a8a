"""What a step came to, as it is recorded: the result as canonical JSON, or where it is kept, or why it could not be.

A result up to the size of a record stands in it. A larger one is cut into pieces that are put into etcd before the record that
names their digest, or goes to a store outside of it. One that cannot be written as JSON, or is too large for either, does not
make what happened unhappen: the step is done, its record says so and why its result is not there, and who asks is told.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.canonical import TooMuch, canonical
from leasekeeper.error_words import filled
from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Fenced, patiently
from leasekeeper.protocol.conduct import Conduct, Invoke, Talk
from leasekeeper.protocol.limits import INLINE_MAX, UNREAD, VALUE_MAX
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.receipt import digest, plain, text_of
from leasekeeper.run_errors import BlobMissing, CorruptState, NotSerialisable, RecordTooLarge
from leasekeeper.run_records import Answered

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.incarnation import Incarnation, Spec
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.run_records import Observed, Receipt

__all__ = ["Told", "encode", "error_text", "intent_text", "joined", "outcome_text", "seen_text", "store", "value_of"]

# What a record holds beside the result.
AROUND = 6 * 1024
RESULT_INLINE_MAX = INLINE_MAX - AROUND
# A piece of a large result; with the compares around it, well below what a transaction may hold.
PIECE = 256 * 1024
STORE_S = 30.0
SEEN_MAX = 2 * 1024
ABOUT_MAX = 4 * 1024
TEXT_MAX = 500
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Told:
    """A result: its canonical JSON, or why there is none (``refused``, of kind ``error``)."""

    text: bytes | None
    digest: str
    refused: str = ""
    error: str = ""

    def inline(self, beside: int) -> bool:
        """Whether it stands in the record itself, where so many bytes stand beside it."""
        return self.text is not None and len(self.text) + beside <= RESULT_INLINE_MAX


def encode(result: Any, step: str) -> Told:
    """A result as it will be recorded; never fails, since what it tells of has happened."""
    try:
        text = canonical(result, f"step {step!r}: result", big="text", most=VALUE_MAX)
    except NotSerialisable as error:
        return Told(None, "", str(error), "type")
    except TooMuch:
        return Told(None, "", f"it takes more than {VALUE_MAX} bytes of JSON", "size")
    except ConfigError as error:
        return Told(None, "", str(error), "type")
    return Told(text, digest(text))


def returned(told: Told, run: str, step: str) -> Any:
    """What the caller gets: decoded from the recorded bytes, as every later life does.

    Raises NotSerialisable or RecordTooLarge for a result that could not be recorded.
    """
    if told.text is None:
        raise _refusal(told.refused, told.error, run, step)
    return _DECODER.decode(told.text.decode())


def _refusal(why: str, kind: str, run: str, step: str) -> Exception:
    done = f"step {step!r} of {run} is done, and its result could not be recorded"
    command = filled("leasekeeper runs resolve RUN STEP --applied --result JSON --evidence TEXT", run=run, step=step)
    text = (
        f"{done}: {why}; it will not be called again: catch this, and go on without the result, or have an operator give one:"
        f" `{command}`"
    )
    if kind == "size":
        return RecordTooLarge(text, what="result", most=VALUE_MAX)
    return NotSerialisable(text, field="result", expected="a result that is JSON; return less, or in another form")


# ---------------------------------------------------------------- what the records say


def joined(**parts: bytes) -> bytes:
    """An object of parts that are canonical JSON already."""
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), parts[name]) for name in sorted(parts)) + b"}"


def seen_text(seen: Observed | None) -> bytes:
    """What a preflight saw, for the record; a large value by its digest."""
    if seen is None:
        return b"null"
    value = canonical(seen.value, "Observed.value", big="text", most=VALUE_MAX)
    as_of = canonical(seen.as_of, "Observed.as_of", big="text")
    applied = {True: b"true", False: b"false", None: b"null"}[seen.applied]
    parts = {"applied": applied, "as_of": as_of, "consistency": b'"%b"' % seen.consistency.encode()}
    parts["digest"] = b'"%b"' % digest(value).encode()
    return joined(**parts, **({"value": value} if len(value) <= SEEN_MAX else {}))


def intent_text(spec: Spec, pointer: Pointer, seen: Observed | None) -> bytes:
    """What an intent says."""
    helps = text_of(" ".join(sorted(spec.helps))).encode() if spec.helps else b'""'
    # As `joined` would write it, in half of the time: each step passes here.
    return b'{"about":%b,"args":"%b","attempt":%d,"effect":%b,"helps":%b,"idem":"%b","key_ttl_s":%d,"pre":%b}' % (
        spec.about,
        spec.args.encode(),
        pointer.attempts + 1,
        text_of(spec.effect).encode(),
        helps,
        pointer.idem.encode(),
        int(spec.key_ttl_s),
        seen_text(seen),
    )


def outcome_text(
    spec: Spec,
    pointer: Pointer,
    told: Told,
    *,
    post: str,
    adopted: bool,
    ms: int,
    about: bytes,
    checkpoint: bytes,
) -> bytes:
    """What an outcome says. ``ms`` is how long the call took."""
    blob = result = b""
    if told.text is None:
        result = b',"refused":%b' % plain({"kind": told.error, "why": told.refused[:TEXT_MAX]})
    elif told.inline(len(checkpoint) if checkpoint != b"null" else 0):
        result = b',"result":%b' % told.text
    else:
        blob = b'"blob":%b,' % plain({"digest": told.digest, "size": len(told.text)})
    # As `joined` would write it, in half of the time: each step passes here.
    return (
        b'{"about":%b,"adopted":%b,"args":"%b","attempt":%d,%b"checkpoint":%b,"digest":"%b","intent":%d,"ms":%d,"post":"%b"%b}'
        % (
            about,
            b"true" if adopted else b"false",
            spec.args.encode(),
            pointer.attempts,
            blob,
            checkpoint,
            told.digest.encode(),
            pointer.intent,
            ms,
            post.encode(),
            result,
        )
    )


def taken_apart(result: Any) -> tuple[Any, bytes]:
    """A result and what is worth knowing of it; where that cannot be recorded, why. Never fails: the call has been made."""
    if not isinstance(result, Answered):
        return result, b"null"
    try:
        return result.value, canonical(dict(result.about), "Answered.about", big="text", most=ABOUT_MAX)
    except Exception as error:  # noqa: BLE001 - whatever it is, the result counts more
        return result.value, plain({"refused": error_text(error)})


def error_text(error: BaseException) -> dict[str, str]:
    """An error for people: its kind and the beginning of its first line."""
    try:
        text = str(error).partition("\n")[0][:TEXT_MAX]
        text.encode()
    except Exception:  # noqa: BLE001 - what it tells of is another error
        text = ""
    return {"text": text, "type": type(error).__name__}


# ---------------------------------------------------------------- large results


def store(life: Incarnation, step: str, told: Told, beside: int) -> Conduct[None]:
    """Put a large result where its record will say it is; nothing for one that stands in it, with ``beside`` bytes more."""
    if told.text is None or told.inline(beside):
        return
    blobs, text = life.blobs, told.text
    if blobs is not None:
        yield Invoke(lambda: blobs.put(told.digest, text), "store")
    else:
        yield Talk(_put_pieces(life.log, step, told.digest, text), "pieces")
        life.space = UNREAD  # pieces are no records: their bytes are not counted there


def _put_pieces(log: Log, step: str, name: str, text: bytes) -> Plan[None]:
    """Under the fence, one piece a transaction; the same pieces again change nothing."""
    own = m.created_at(log.mine.key, log.mine.create_revision)
    for index, start in enumerate(range(0, len(text), PIECE)):
        put = m.put(log.keys.blob(name, index), text[start : start + PIECE])
        request = pb.TxnRequest(compare=(own,), success=(put,))
        reply = yield from patiently(log, request, "outcome", step)
        if not reply.succeeded:
            raise Fenced(log.run)


def _get_pieces(log: Log, name: str, size: int) -> Plan[bytes]:
    pieces = []
    for index in range((size + PIECE - 1) // PIECE):
        gets = (m.get(log.keys.blob(name, index)),)
        reply = yield from persist(TXN, m.read_only(gets), now=log.ctx.now, until=log.ctx.now() + STORE_S)
        kvs = m.range_kvs(reply, 0)
        pieces.append(kvs[0].value if kvs else b"")
    return b"".join(pieces)


def value_of(life: Incarnation, receipt: Receipt) -> Conduct[Any]:
    """The value of a recorded outcome, wherever it is kept.

    Raises NotSerialisable or RecordTooLarge for one that could not be recorded, BlobMissing for one that is kept elsewhere,
    CorruptState for one that is not what was.
    """
    data = receipt.data
    if "result" in data:
        return data["result"]
    where = f"record {receipt.seq} of {receipt.run}"
    if isinstance(refused := data.get("refused"), dict):
        raise _refusal(str(refused.get("why")), str(refused.get("kind")), receipt.run, receipt.step)
    try:
        name, size = str(data["blob"]["digest"]), int(data["blob"]["size"])
    except (KeyError, TypeError, ValueError):
        raise CorruptState(f"{where} has no result", where=where, why="it has no result") from None
    if not 0 < size <= VALUE_MAX:
        raise CorruptState(f"{where} names a result of {size} bytes", where=where, why="its size cannot be")
    blobs = life.blobs
    if blobs is not None:
        text = yield Invoke(lambda: blobs.get(name), "load")
    else:
        text = yield Talk(_get_pieces(life.log, name, size), "pieces")
        if not text:
            told = (
                f"the result of {where} is not in etcd: give the blob store that keeps it as blobs=, where it is {name}"
            )
            raise BlobMissing(told, digest=name)
    if digest(text) != name:
        why = f"its result, kept as {name}, is not what was recorded"
        raise CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
    return json.loads(text)


def moved(pointer: Pointer, revision: int) -> Pointer:
    """Where a step stands once that is written."""
    return pointer._replace(mod_revision=revision)
