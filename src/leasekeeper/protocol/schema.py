"""A checkpoint as it is stored: one state in an envelope that says what it is, and shows any damage.

The bytes are canonical JSON of ``{"v":1,"schema","version","min_reader","digest","data","n","seq"}``. ``digest`` is the SHA-256,
in hex, of the canonical JSON of all the other fields, so that no byte of the envelope can change unseen; ``n`` counts the
commits of this checkpoint from 1; ``seq`` is the number of the record that was written with it, whose signature covers what a
digest alone cannot: that somebody wrote other bytes with a digest to match.

==============================================  =====================================================================
what is stored                                  what becomes of it
==============================================  =====================================================================
any byte changed; another schema's              CorruptState, never a default value
of this program's version                       read, strictly
older, from the type's ``oldest`` on            migrated step by step, then read as strictly
older than that                                 SchemaUnknown
newer, and its ``min_reader`` allows it         read without the fields that this program does not know; not written:
                                                it would lose them, or leave them to contradict what it changed
newer otherwise                                 SchemaTooNew
==============================================  =====================================================================

A *pinned* writer (``write_version``) writes an older version by steps down, as long as programs run that know no newer one.
Nothing here does I/O, and nothing that is refused has changed anything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from leasekeeper.canonical import BYTES_MAX, canonical
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.shape import Misfit, Walk
from leasekeeper.protocol.state_types import shape_of
from leasekeeper.protocol.versions import VERSION_MAX, Declared, declared
from leasekeeper.run_errors import CorruptState, NotSerialisable, RecordTooLarge
from leasekeeper.schema_errors import MigrationFailed, SchemaTooNew

__all__ = ["Envelope", "Loaded", "decode", "encode", "read_envelope", "seal_envelope"]

T = TypeVar("T")

FORMAT = 1
WHAT = "checkpoint"
COUNT_MAX = 2**53 - 1
NUMBERS = {"v": COUNT_MAX, "version": VERSION_MAX, "min_reader": VERSION_MAX, "n": COUNT_MAX, "seq": COUNT_MAX}
FIELDS = frozenset((*NUMBERS, "schema", "digest", "data"))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What can be said of a stored checkpoint without its type. ``data`` is JSON as it was stored."""

    schema: str
    version: int
    min_reader: int
    n: int
    seq: int
    data: dict[str, Any]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A checkpoint that was read.

    ``value`` is the state and ``data`` its JSON in the version that this program knows; ``version`` is the one that was stored.
    ``migrated``: it was older. ``newer``: it can be read, but this program must not write over it. ``stored`` are the bytes.
    """

    value: T
    data: dict[str, Any]
    version: int
    n: int
    seq: int
    migrated: bool
    newer: bool
    stored: bytes = field(repr=False)


def encode(value: T, kind: type[T], *, over: Loaded[Any] | None, seq: int, write_version: int | None = None) -> bytes:
    """The bytes to store of a state.

    What was made can be read back by this program: the state is read from its own data before anything is returned, also
    from that of an older version.

    Args:
        value: the state.
        kind: its type, a dataclass or dict.
        over: what is stored now and will be replaced; None: nothing is.
        seq: the number of the record that is written with it.
        write_version: write this older version, by steps down; None: the type's own.

    Raises:
        SchemaTooNew: what is stored now is of a newer version.
        NotSerialisable: the state is not of its type; ``field`` is the path.
        RecordTooLarge: it takes more than 64 KiB.
        ConfigError: the type, or ``write_version``, cannot be.
        MigrationFailed: a step down failed, or the way back from there.
    """
    spoken = declared(kind)
    if over is not None and over.newer:
        raise SchemaTooNew(
            f"{spoken.schema} is stored in version {over.version}; this program, which knows version {spoken.version}, can read"
            " it, but would lose what is new in it by writing: deploy the newer program",
            schema=spoken.schema,
            version=over.version,
            reads=spoken.version,
        )
    version = spoken.version if write_version is None else write_version
    if type(version) is not int or not spoken.oldest <= version <= spoken.version:
        expected = f"a version from {spoken.oldest} to {spoken.version}, those that this program reads and writes"
        raise ConfigError(field="write_version", value=version, expected=expected)
    data = _dumped(value, spoken)
    if version != spoken.version:
        _spelled(data)  # so that a step is given nothing that could not be stored
        data = spoken.downgrade(data, version)
        _migrated(data, version, spoken)
    n = 1 if over is None else over.n + 1
    min_reader = spoken.min_reader if version == spoken.version else version
    return seal_envelope(Envelope(spoken.schema, version, min_reader, n, seq, data))


def decode(stored: bytes, kind: type[T], where: str) -> Loaded[T]:
    """What is stored, as the state that it is.

    Args:
        stored: the bytes.
        kind: the state's type, a dataclass or dict.
        where: where they stand, for errors.

    Raises:
        CorruptState: they are damaged, or are not what this type writes.
        SchemaTooNew: they are of a version that this program cannot read.
        SchemaUnknown: they are older than what the type still reads.
        MigrationFailed: a migration failed, or what came of it does not fit the type.
        ConfigError: the type cannot be, as one with a hole in its migrations.
    """
    spoken = declared(kind)
    envelope = read_envelope(stored, where)
    if envelope.schema != spoken.schema:
        _corrupt(where, f"it is of schema {envelope.schema}, not {spoken.schema}")
    newer, migrated = envelope.version > spoken.version, envelope.version < spoken.version
    if newer and envelope.min_reader > spoken.version:
        raise SchemaTooNew(schema=spoken.schema, version=envelope.version, reads=spoken.version)
    if migrated:
        value, data = _migrated(envelope.data, envelope.version, spoken)
    else:
        data = envelope.data
        try:
            value = _load(data, spoken, lenient=newer)
        except Misfit as error:
            hint = "" if newer else f"; was {kind.__name__} changed without a new version?"
            _corrupt(where, f"{error}{hint}", error)
    return Loaded(value, data, envelope.version, envelope.n, envelope.seq, migrated, newer, stored)


def _load(data: dict[str, Any], spoken: Declared, *, lenient: bool = False) -> Any:
    return shape_of(spoken.kind).load(data, "data", Walk(lenient=lenient), 1)


def _migrated(data: dict[str, Any], version: int, spoken: Declared) -> tuple[Any, dict[str, Any]]:
    """The state that an older version's data becomes, and its data."""
    made = spoken.upgrade(data, version)
    try:
        return _load(made, spoken), made
    except Misfit as error:
        raise MigrationFailed(
            f"{spoken.schema} of version {version} does not become one of version {spoken.version}: {error}:"
            " mend the migrations; what is stored was not touched",
            schema=spoken.schema,
            version=version,
            to=spoken.version,
            function=spoken.last_step,
            why=str(error),
        ) from error


def _dumped(value: object, spoken: Declared) -> dict[str, Any]:
    try:
        data: dict[str, Any] = shape_of(spoken.kind).dump(value, "data", Walk(), 1)
        _load(data, spoken)
    except Misfit as error:
        raise NotSerialisable(
            f"{spoken.schema} cannot be stored: {error}",
            field=error.path,
            expected=f"what {spoken.kind.__name__} declares",
        ) from error
    return data


# ---------------------------------------------------------------- the envelope


def seal_envelope(envelope: Envelope) -> bytes:
    """The bytes of an envelope; its digest is made anew."""
    fields = {
        "v": FORMAT,
        "schema": envelope.schema,
        "version": envelope.version,
        "min_reader": envelope.min_reader,
        "n": envelope.n,
        "seq": envelope.seq,
        "data": envelope.data,
    }
    return _spelled({**fields, "digest": hashlib.sha256(_spelled(fields)).hexdigest()})


def _spelled(data: dict[str, Any]) -> bytes:
    """Canonical JSON of what is to be stored; NotSerialisable or RecordTooLarge."""
    try:
        return canonical(data, WHAT)
    except ConfigError as error:
        if error.field != WHAT:  # a part of it: the path leads there
            raise NotSerialisable(field=error.field, value=error.value, expected=error.expected) from None
    size = len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    raise RecordTooLarge(what=WHAT, size=max(size, BYTES_MAX + 1), most=BYTES_MAX)


def read_envelope(stored: bytes, where: str) -> Envelope:
    """The envelope in stored bytes, whose digest is right; CorruptState for anything else.

    SchemaTooNew for a format of envelopes that is newer than this program: whatever a later one has, it keeps ``v``, and
    ``digest`` over all the rest.
    """
    fields = _fields(stored, where)
    rest = {name: value for name, value in fields.items() if name != "digest"}
    if fields.get("digest") != hashlib.sha256(canonical(rest, WHAT)).hexdigest():
        _corrupt(where, "its bytes are not those that were written: the digest is wrong")
    for name, most in NUMBERS.items():
        value = fields.get(name)
        if type(value) is not int or not 1 <= value <= most:
            _corrupt(where, f"{name} is no number from 1 to {most}")
        if name == "v" and value > FORMAT:
            raise SchemaTooNew(schema="checkpoint envelope", version=value, reads=FORMAT, where=where)
    if fields.keys() != FIELDS or type(fields["schema"]) is not str or type(fields["data"]) is not dict:
        _corrupt(where, "it is no checkpoint")
    if fields["min_reader"] > fields["version"]:
        _corrupt(where, "it can be read only by versions that are newer than its own")
    return Envelope(**{name: value for name, value in fields.items() if name != "v"})


def _fields(stored: bytes, where: str) -> dict[str, Any]:
    if len(stored) > BYTES_MAX:
        _corrupt(where, f"it has more than {BYTES_MAX} bytes")
    try:
        fields = json.loads(stored)
        spelled = canonical(fields, WHAT)
    except (ValueError, RecursionError, ConfigError) as error:
        _corrupt(where, "it is no canonical JSON", error)
    if spelled != stored or type(fields) is not dict:
        _corrupt(where, "it is no canonical JSON object")
    return fields


def _corrupt(where: str, why: str, cause: BaseException | None = None) -> NoReturn:
    raise CorruptState(where=where, why=why) from cause
