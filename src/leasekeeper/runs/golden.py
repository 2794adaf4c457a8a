"""Golden fixtures: stored states as each released version wrote them, and the check that this code still reads them all.

A fixture is one file, ``<schema>/v<version>/<name>.json``: the envelope just as it is stored, and a line end, which editors add.
It is written once, by the code of its version, and never changed after that version was released. The check is for CI, from a
test or by ``leasekeeper migrate --check``::

    assert not check_golden([OrderState], Path("tests/golden")).findings
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leasekeeper.canonical import BYTES_MAX, canonical
from leasekeeper.errors import ConfigError, FixIt
from leasekeeper.protocol.schema import Envelope, Loaded, decode, encode, read_envelope, seal_envelope
from leasekeeper.protocol.versions import VERSION_MAX, Declared, declared
from leasekeeper.run_errors import CorruptState
from leasekeeper.schema_errors import SchemaTooNew

__all__ = ["Checked", "Finding", "Problem", "check_golden", "write_golden"]

Problem = Literal[
    "declaration",
    "missing",
    "stray",
    "corrupt",
    "misplaced",
    "newer",
    "refused",
    "unstable",
    "changed",
    "pinned",
    "accepted",
]

ENDING = ".json"
VERSION = re.compile(r"v([1-9][0-9]{0,3})")
NAME_MAX = 100
# Any will do: a fixture is no commit of a run.
SEQ = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a state type, or with what this code makes of a fixture.

    ``problem``:

    - ``declaration``: the type cannot be used, as one with a hole in its migrations, or another has the same schema
    - ``missing``: no fixture of a version that the type says it reads
    - ``stray``: a file that is no fixture
    - ``corrupt``: the digest is wrong, or the file is no envelope
    - ``misplaced``: the envelope is of another schema or version than its directory
    - ``newer``: a version that the type does not have
    - ``refused``: the fixture is not read
    - ``unstable``: it is not read alike each time, or what was read and written again is not the same
    - ``changed``: a state of the present version is written otherwise than its fixture was
    - ``pinned``: the state cannot be written in an older version, though there are steps down to it
    - ``accepted``: a version that nobody knows yet is not refused

    ``version`` is 0, and ``fixture`` empty, where there is none. ``fixture`` is the path below the directory of fixtures.
    """

    schema: str
    version: int
    fixture: str
    problem: Problem
    what: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found. ``schemas`` are the names and present versions of the types, ``fixtures`` how many files were read."""

    findings: tuple[Finding, ...]
    schemas: tuple[tuple[str, int], ...]
    fixtures: int


@dataclass(frozen=True, slots=True)
class _Fixture:
    """A file in its place."""

    version: int
    path: Path
    place: str


def check_golden(kinds: Iterable[type], directory: Path) -> Checked:
    """Whether the present code reads every fixture of some state types, and whether each version has one.

    Changes nothing. Fixtures of schemas that none of the types has are left alone.

    Args:
        kinds: state types, in their present version.
        directory: where the fixtures are.

    Raises:
        ConfigError: there is no such directory, or no type.
    """
    if not directory.is_dir():
        raise ConfigError(field="fixtures", value=str(directory), expected="a directory")
    findings: list[Finding] = []
    known: dict[str, Declared] = {}
    for kind in dict.fromkeys(kinds):
        findings += _declare(kind, known)
    if not known and not findings:
        raise ConfigError(field="states", value=None, expected="at least one state type")
    count = 0
    for spoken in known.values():
        fixtures, stray = _listed(spoken, directory)
        count += len(fixtures)
        findings += [*stray, *_missing(spoken, fixtures)]
        for fixture in fixtures:
            findings += _judge(spoken, fixture)
    return Checked(tuple(findings), tuple((one.schema, one.version) for one in known.values()), count)


def write_golden(value: Any, directory: Path, name: str = "example") -> Path:
    """Write the fixture of a state in the present version of its type; the path. What is there already stays as it is.

    Args:
        value: the state.
        directory: where the fixtures are; it is made if it is missing.
        name: the file's name, without ending: letters, digits, ``-`` and ``_``.

    Raises:
        ConfigError: there is another fixture of that name, or the name is none.
        NotSerialisable: the state is not of its type.
    """
    if not (1 <= len(name) <= NAME_MAX and all(c.isalnum() or c in "-_" for c in name)):
        raise ConfigError(field="name", value=name, expected=f"1 to {NAME_MAX} letters, digits, '-' and '_'")
    spoken = declared(type(value))
    stored = encode(value, type(value), over=None, seq=SEQ)
    path = directory / spoken.schema / f"v{spoken.version}" / f"{name}{ENDING}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            file.write(stored + b"\n")
    except FileExistsError:
        if _read(path) != stored:
            expected = "the same state: a released fixture never changes; raise the version, or take another name"
            raise ConfigError(field=str(path), value="another state", expected=expected) from None
    return path


# ---------------------------------------------------------------- what there is


def _declare(kind: type, known: dict[str, Declared]) -> Iterator[Finding]:
    try:
        spoken = declared(kind)
    except ConfigError as error:
        yield Finding(getattr(kind, "__name__", "?"), 0, "", "declaration", str(error))
        return
    other = known.setdefault(spoken.schema, spoken)
    if other is not spoken:
        what = f"{_full(other.kind)} and {_full(kind)} are both of this schema; check the present one alone"
        yield Finding(spoken.schema, spoken.version, "", "declaration", what)


def _full(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _listed(spoken: Declared, directory: Path) -> tuple[list[_Fixture], list[Finding]]:
    """The fixtures of a type in order of their versions, and what lies about between them."""
    root = directory / spoken.schema
    found: list[_Fixture] = []
    stray: list[Finding] = []
    for path in sorted(root.rglob("*")) if root.is_dir() else ():
        place = path.relative_to(directory).as_posix()
        parts = path.relative_to(root).parts
        if path.is_dir() or any(part.startswith(".") for part in parts):
            continue
        version = VERSION.fullmatch(parts[0])
        if version and len(parts) == 2 and path.suffix == ENDING:
            found.append(_Fixture(int(version[1]), path, place))
        else:
            what = f"no fixture: expected {spoken.schema}/v<version>/<name>{ENDING}"
            stray.append(Finding(spoken.schema, 0, place, "stray", what))
    return sorted(found, key=lambda one: (one.version, one.place)), stray


def _missing(spoken: Declared, fixtures: list[_Fixture]) -> Iterator[Finding]:
    for version in range(spoken.oldest, spoken.version + 1):
        if not any(fixture.version == version for fixture in fixtures):
            advice = (
                "write one with --write" if version == spoken.version else "write one with the code of that version"
            )
            yield Finding(spoken.schema, version, "", "missing", f"version {version} has no fixture: {advice}")


def _read(path: Path) -> bytes:
    """A fixture's bytes without the line end that an editor may have added, and no more than can be one."""
    with path.open("rb") as file:
        stored = file.read(BYTES_MAX + 2)
    return stored.removesuffix(b"\n").removesuffix(b"\r")


# ---------------------------------------------------------------- what comes of a fixture


def _judge(spoken: Declared, fixture: _Fixture) -> Iterator[Finding]:
    """What is wrong with one fixture: the first thing in reading it, or all that is wrong with what was read."""

    def found(problem: Problem, what: object) -> Finding:
        return Finding(spoken.schema, fixture.version, fixture.place, problem, " ".join(str(what).split()))

    try:
        stored = _read(fixture.path)
        envelope = read_envelope(stored, fixture.place)
    except (CorruptState, OSError) as error:
        yield found("corrupt", _why(error))
        return
    except SchemaTooNew as error:
        yield found("newer", error)
        return
    if (envelope.schema, envelope.version) != (spoken.schema, fixture.version):
        yield found("misplaced", f"it is version {envelope.version} of {envelope.schema}")
    elif envelope.version > spoken.version:
        yield found("newer", f"{spoken.kind.__name__} is at version {spoken.version}: was a later one taken back?")
    elif envelope.version >= spoken.oldest:
        try:
            loaded: Loaded[Any] = decode(stored, spoken.kind, fixture.place)
        except FixIt as error:
            yield found("refused", _why(error))
            return
        for problem, what in _behaves(spoken, envelope, loaded):
            yield found(problem, what)


def _why(error: BaseException) -> object:
    """The error without its advice, which is for states in etcd."""
    return error.why if isinstance(error, CorruptState) else error


def _behaves(spoken: Declared, envelope: Envelope, loaded: Loaded[Any]) -> Iterator[tuple[Problem, object]]:
    """What is wrong with a state that could be read."""
    try:
        again: Loaded[Any] = decode(loaded.stored, spoken.kind, "again")
        written: Loaded[Any] = decode(encode(loaded.value, spoken.kind, over=None, seq=SEQ), spoken.kind, "again")
    except FixIt as error:
        yield "unstable", f"it was read, but not a second time, or not what was made of it: {error}"
        return
    if not _alike(again, loaded):
        yield "unstable", "it was read twice, and not alike: a migration is no pure function"
        return
    if not _alike(written, loaded):
        problem: Problem = "unstable" if loaded.migrated else "changed"
        yield problem, f"{spoken.kind.__name__} changes what it is given: what is written again is not the same"
    for version in _reached(spoken):
        try:
            encode(loaded.value, spoken.kind, over=None, seq=SEQ, write_version=version)
        except FixIt as error:
            yield "pinned", f"it cannot be written as version {version}: {error}"
    if spoken.version < VERSION_MAX and not _refuses(spoken, envelope):
        yield "accepted", f"version {spoken.version + 1}, which nobody knows, was not refused by SchemaTooNew"


def _alike(one: Loaded[Any], other: Loaded[Any]) -> bool:
    # By their text: in Python True equals 1, and not every class can compare its states.
    return canonical(one.data) == canonical(other.data)


def _reached(spoken: Declared) -> Iterator[int]:
    """The older versions that steps down lead to."""
    version = spoken.version
    while version > spoken.oldest and (version, version - 1) in spoken.steps:
        version -= 1
        yield version


def _refuses(spoken: Declared, envelope: Envelope) -> bool:
    unknown = spoken.version + 1
    later = dataclasses.replace(envelope, version=unknown, min_reader=unknown)
    try:
        decode(seal_envelope(later), spoken.kind, "later")
    except SchemaTooNew:
        return True
    return False
