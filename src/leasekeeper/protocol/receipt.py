"""A receipt: one record of a run, sealed once and from then on only compared byte by byte.

The stored bytes are ``{"body":B,"hash":"…","key":"…","sig":"…"}``, canonical JSON (RFC 8785) as a whole. ``hash`` is the SHA-256
of B, so that damage shows without any key; ``sig`` signs B under a prefix of its own, so that nothing signed for another
purpose passes as a receipt; and each record carries as ``prev`` the SHA-256 of the whole bytes of the one before it. So
whoever trusts the last record's signature can trust all before it by their hashes alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import json.encoder
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from leasekeeper.fencing import TOKEN_DIGITS, TOKEN_MAX
from leasekeeper.protocol.keys import escape
from leasekeeper.run_errors import CorruptState
from leasekeeper.run_records import Receipt
from leasekeeper.schema_errors import SchemaTooNew

if TYPE_CHECKING:
    from leasekeeper.signing import SigningKey

__all__ = [
    "DOMAIN",
    "FIRST_PREV",
    "FORMAT",
    "UNSIGNED",
    "Draft",
    "Writer",
    "digest",
    "glance",
    "is_whole",
    "json_of",
    "link",
    "plain",
    "read_receipt",
    "refuse_newer",
    "seal",
    "signed_part",
    "step_text",
    "text_of",
]

FORMAT = 1
DOMAIN = b"leasekeeper receipt v1\n"
FIRST_PREV = "0" * 64

# How a record ends that nobody signed.
UNSIGNED = b'","key":"","sig":""}'

_OPEN = b'{"body":'
_HASH = b',"hash":"'
_HASH_LENGTH = 64
# What follows B: the hash, the key's id (at most 64 characters) and the signature (at most 64 bytes, so 86 characters).
_TAIL_MAX = 64 + 64 + 86 + 40

# The part of json that escapes one string; through the encoder it takes ten times as long.
_quoted = json.encoder.encode_basestring
_plain = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def text_of(value: str) -> str:
    """A string as canonical JSON."""
    return _quoted(value)


def plain(fields: dict[str, Any]) -> bytes:
    """Canonical JSON of what we put together ourselves: ASCII keys, text, whole numbers below 2**53, lists, dicts, None."""
    return _plain(fields).encode()


def json_of(items: list[Any]) -> bytes:
    """`plain` for a list."""
    return _plain(items).encode()


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Draft:
    """What a record is to say, before it has a number. ``data`` is canonical JSON of an object."""

    kind: str
    step: str
    data: bytes
    nonce: str


class Writer:
    """Seals records of one life of one run: what they all have in common is written once.

    Args:
        workflow: with ``id`` and ``gen``, which run.
        namespace_id: the namespace's own number.
        token: the fencing token; 0 for an operator.
        claim: the claim's nonce; empty for an operator.
        holder: who writes, for people.
        life: the incarnation's number.
        key: signs; None: records are chained but not signed.
    """

    __slots__ = ("_claim", "_gen", "_holder", "_key", "_life", "_token")

    def __init__(
        self,
        *,
        workflow: str,
        id: str,  # noqa: A002 - the record's own word
        gen: int,
        namespace_id: str,
        token: int,
        claim: str,
        holder: str,
        life: str,
        key: SigningKey | None = None,
    ) -> None:
        # In the order of the keys: at, claim, data, gen, holder, id, kind, life, nonce, ns, prev, seq, step, token, v, wf.
        self._claim = f'"claim":{text_of(claim)},"data":'
        self._gen = f',"gen":{gen},"holder":{text_of(holder)},"id":{text_of(id)},"kind":"'
        self._life = f'","life":{text_of(life)},"nonce":"'
        self._token = f'"token":"{token:0{TOKEN_DIGITS}d}","v":{FORMAT},"wf":{text_of(workflow)}}}'
        self._holder = f'","ns":{text_of(namespace_id)},"prev":"'
        self._key = key

    @property
    def key_id(self) -> str:
        """The id of the key that signs; empty: none."""
        return self._key.key_id if self._key is not None else ""

    def seal(self, draft: Draft, *, seq: int, prev: str, at_ms: int) -> bytes:
        """The stored bytes of a record."""
        body = (
            f'{{"at":{at_ms},{self._claim}{draft.data.decode()}{self._gen}{draft.kind}{self._life}{draft.nonce}'
            f'{self._holder}{prev}","seq":{seq},"step":{text_of(draft.step)},{self._token}'
        ).encode()
        return seal(body, self._key)


def seal(body: bytes, key: SigningKey | None, domain: bytes = DOMAIN) -> bytes:
    """The stored bytes around a body that is canonical JSON."""
    key_id, signature = "", ""
    if key is not None:
        key_id = key.key_id
        signature = base64.urlsafe_b64encode(key.sign(domain + body)).rstrip(b"=").decode()
    return b'%b%b%b%b","key":"%b","sig":"%b"}' % (
        _OPEN,
        body,
        _HASH,
        digest(body).encode(),
        key_id.encode(),
        signature.encode(),
    )


def signed_part(stored: bytes) -> bytes:
    """The body's bytes, just as they stand in the stored ones; ValueError when there is none."""
    end = stored.rfind(_HASH, max(0, len(stored) - _TAIL_MAX))
    if not stored.startswith(_OPEN) or end < 0:
        raise ValueError("it is no receipt")
    return stored[len(_OPEN) : end]


def is_whole(stored: bytes) -> bool:
    """Whether sealed bytes carry the hash of their body; without a look at what they say."""
    end = stored.rfind(_HASH, max(0, len(stored) - _TAIL_MAX))
    start = end + len(_HASH)
    return end > 0 and digest(stored[len(_OPEN) : end]).encode() == stored[start : start + _HASH_LENGTH]


_PREV = b'","prev":"'
_SEQ = b'","seq":'


def link(stored: bytes) -> tuple[str, int]:
    """What ties a record to its place: the hash that it carries of the one before it, and its number.

    Read without parsing all of it, for walking over many; ``("", 0)`` when it is no record. No text that a user can give holds
    what is looked for: a quote inside of a text is escaped.
    """
    at = stored.rfind(_PREV)
    start = at + len(_PREV)
    end = start + _HASH_LENGTH
    if at < 0 or stored[end : end + len(_SEQ)] != _SEQ:
        return "", 0
    number = stored[end + len(_SEQ) : end + len(_SEQ) + 16].partition(b",")[0]
    return stored[start:end].decode("ascii", "replace"), int(number) if number.isdigit() else 0


_STEP = b',"step":'
_TOKEN = b',"token":"'


def step_text(stored: bytes) -> bytes:
    """The step of a record as it stands in it, JSON with its quotes; read without parsing all of it."""
    start = stored.find(_STEP, stored.rfind(_PREV)) + len(_STEP)
    return stored[start : stored.rfind(_TOKEN)]


_AT = b'{"body":{"at":'
_KIND = b',"kind":"'
_CHECKPOINT = b'"checkpoint":{'
# Of these records, which are nearly all, a glance tells all that follows from them.
_PLAIN_KINDS = {b"intent": "intent", b"before": "before", b"outcome": "outcome"}


class Glance(NamedTuple):
    """What a plain record says, as far as it counts for where its run stands. ``step`` is JSON, with its quotes."""

    kind: str
    step: bytes
    at_ms: int


def glance(stored: bytes) -> Glance | None:
    """What a plain record says, read without parsing it; None for one that has to be read whole.

    Only for records whose bytes are known to be what was sealed, as by the hash that the next one carries.
    """
    prev = stored.rfind(_PREV)
    start = stored.rfind(_KIND, 0, prev) + len(_KIND)
    kind = _PLAIN_KINDS.get(stored[start : stored.find(b'"', start)])
    if kind is None or (kind == "outcome" and _CHECKPOINT in stored) or not stored.startswith(_AT):
        return None
    step = stored[stored.find(_STEP, prev) + len(_STEP) : stored.rfind(_TOKEN)]
    return Glance(kind, step, int(stored[len(_AT) : stored.find(b",", len(_AT))]))


def signature_bytes(text: str) -> bytes:
    """The bytes of a signature as it stands in a record; ValueError for what is none, or has more than one spelling."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
        raise ValueError("it is not spelled as a signature is")
    return raw


def unsealed(stored: bytes, where: str, what: str, reads: int = 1) -> tuple[dict[str, Any], str, str]:
    """``(body, key id, signature)`` of sealed bytes whose own hash is right; CorruptState for anything else.

    SchemaTooNew for a ``what`` in a newer format than this program ``reads``: whatever later formats have, they are sealed in
    this way and have their number as ``v``. So what is newer is never taken for damage, nor written over.
    """
    body, key_id, signature = _unsealed(stored, where)
    version = body.get("v")
    if type(version) is not int or version < 1:
        why = f"it is no {what}: it has no number of its format"
        raise CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
    if version > reads:
        raise SchemaTooNew(schema=what, version=version, reads=reads, where=where)
    return body, key_id, signature


def refuse_newer(stored: bytes, where: str) -> None:
    """SchemaTooNew for a record in a newer format, whatever else there is to say of it."""
    try:
        unsealed(stored, where, "record", FORMAT)
    except CorruptState:
        return


def _unsealed(stored: bytes, where: str) -> tuple[dict[str, Any], str, str]:
    try:
        body = signed_part(stored)
        outer = json.loads(stored)
        if outer["hash"] != digest(body) or not isinstance(outer["body"], dict):
            raise ValueError("its bytes are not those that were sealed: the hash is wrong")
        if not isinstance(outer["key"], str) or not isinstance(outer["sig"], str) or stored != _resealed(body, outer):
            raise ValueError("it is not spelled as it was sealed")
        return outer["body"], outer["key"], outer["sig"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptState(f"{where} cannot be trusted: {error}", where=where, why=str(error)) from None


def _resealed(body: bytes, outer: dict[str, Any]) -> bytes:
    tail = json.dumps({name: outer[name] for name in ("hash", "key", "sig")}, separators=(",", ":"))
    return b"%b%b,%b" % (_OPEN, body, tail[1:].encode())


_TEXTS = ("claim", "holder", "id", "kind", "life", "nonce", "ns", "prev", "step", "token", "wf")
_NUMBERS = ("at", "gen", "seq", "v")
_FIELDS = frozenset((*_TEXTS, *_NUMBERS, "data"))


def read_receipt(stored: bytes, where: str) -> Receipt:
    """A record from its stored bytes, if they are what was sealed; its signature is not looked at here.

    Raises CorruptState, naming ``where`` it stands, for anything else, SchemaTooNew for a newer format: never a part of it.
    """
    body, key_id, signature = unsealed(stored, where, "record", FORMAT)
    try:
        if body.keys() != _FIELDS or body["v"] != FORMAT:
            raise ValueError(f"it is no record of format {FORMAT}")
        for name in _TEXTS:
            if not isinstance(body[name], str):
                raise TypeError(f"{name} is no text")
        for name in _NUMBERS:
            if type(body[name]) is not int or body[name] < 0:
                raise TypeError(f"{name} is no whole number")
        if not isinstance(body["data"], dict) or not body["seq"] or not body["gen"]:
            raise ValueError("it is no record of a run")
        token = _token(body["token"])
    except (ValueError, TypeError) as error:
        raise CorruptState(f"{where} cannot be trusted: {error}", where=where, why=str(error)) from None
    return Receipt(
        run=f"{escape(body['wf'])}/{escape(body['id'])}",
        workflow=body["wf"],
        id=body["id"],
        gen=body["gen"],
        seq=body["seq"],
        kind=body["kind"],
        step=body["step"],
        data=body["data"],
        token=token,
        claim=body["claim"],
        holder=body["holder"],
        life=body["life"],
        nonce=body["nonce"],
        namespace_id=body["ns"],
        prev=body["prev"],
        at_ms=body["at"],
        hash=digest(stored),
        key_id=key_id,
        signature=signature,
        stored=stored,
    )


def _token(text: str) -> int:
    if len(text) != TOKEN_DIGITS or not (text.isascii() and text.isdigit()) or int(text) > TOKEN_MAX:
        raise ValueError("its token is none")
    return int(text)
