"""Golden fixtures: every version that was released is still read, and whatever is wrong is found and named."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.schema import Envelope, decode, encode, seal_envelope
from leasekeeper.runs import golden
from leasekeeper.runs.golden import check_golden, write_golden
from leasekeeper.runs.schema import migration


@dataclass
class V1:
    """As released."""

    schema: ClassVar[str] = "order"

    paid: bool


@dataclass
class V2:
    """As it is now."""

    schema: ClassVar[str] = "order"
    version: ClassVar[int] = 2

    paid: str


migration(V2, from_version=1)(lambda data: {"paid": "yes" if data["paid"] else ""})
migration(V2, from_version=2, to_version=1)(lambda data: {"paid": data["paid"] == "yes"})


@pytest.fixture
def fixtures(tmp_path: Path) -> Path:
    """A directory with what both versions wrote."""
    write_golden(V1(True), tmp_path, "paid")
    write_golden(V1(False), tmp_path, "open")
    write_golden(V2("yes"), tmp_path, "paid")
    return tmp_path


def problems(kind: type, directory: Path) -> list[tuple[str, int, str]]:
    """What is found, without its words."""
    return [(one.problem, one.version, one.fixture) for one in check_golden([kind], directory).findings]


def changed(steps: dict[int, Callable[[Any], Any]], version: int = 2, **said: Any) -> Any:
    """The present class with other migrations."""
    kind = make_dataclass("Order", [("paid", str)], namespace={"schema": "order", "version": version, **said})
    for at, step in steps.items():
        migration(kind, from_version=at)(step)
    return kind


def test_all_is_well(fixtures: Path) -> None:
    """B20: every fixture of every version is read, and that is counted."""
    found = check_golden([V2], fixtures)
    assert (found.findings, found.schemas, found.fixtures) == ((), (("order", 2),), 3)


def test_a_fixture_is_the_stored_bytes_and_is_written_once(fixtures: Path) -> None:
    """The file holds what etcd would; writing the same state again changes nothing, and another state is refused."""
    path = fixtures / "order/v2/paid.json"
    before = path.read_bytes()
    assert before == encode(V2("yes"), V2, over=None, seq=1) + b"\n"
    assert write_golden(V2("yes"), fixtures, "paid") == path
    with pytest.raises(ConfigError, match="never changes"):
        write_golden(V2("no"), fixtures, "paid")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "x" * 101])
def test_a_fixture_has_a_plain_name(tmp_path: Path, name: str) -> None:
    """No name leads out of the directory."""
    with pytest.raises(ConfigError, match="name"):
        write_golden(V1(True), tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_version_without_a_fixture_is_found(fixtures: Path) -> None:
    """B20: from the oldest version that is read to the present one, each needs a fixture."""
    kind = changed({1: lambda data: data, 2: lambda data: data, 3: lambda data: data}, version=4)
    missing = [one for one in check_golden([kind], fixtures).findings if one.problem == "missing"]
    assert [one.version for one in missing] == [3, 4]
    assert ["--write" in one.what for one in missing] == [False, True]
    assert problems(changed({}, version=2, oldest=2), fixtures) == []


def test_a_hole_in_the_migrations_is_found(fixtures: Path) -> None:
    """B18: the finding names the step that is missing."""
    (finding,) = check_golden([changed({})], fixtures).findings
    assert finding.problem == "declaration"
    assert "@migration(Order, from_version=1)" in finding.what


def test_two_types_of_one_schema_are_found(fixtures: Path) -> None:
    """Only one can be the present one."""
    findings = check_golden([V2, V1], fixtures).findings
    assert [(one.problem, one.version) for one in findings] == [("declaration", 1)]


@pytest.mark.parametrize(
    ("place", "stored", "problem"),
    [
        ("v1/paid.json", b"", "corrupt"),
        ("v1/paid.json", b"x" * 70_000, "corrupt"),
        ("v1/paid.json", encode(V1(True), V1, over=None, seq=1).replace(b"true", b"false"), "corrupt"),
        ("v1/paid.json", encode(V1(True), V1, over=None, seq=1) + b"\n\n", "corrupt"),
        ("v1/two.json", encode(V2("yes"), V2, over=None, seq=1), "misplaced"),
        ("v1/other.json", seal_envelope(Envelope("other", 1, 1, 1, 1, {})), "misplaced"),
        ("v3/paid.json", seal_envelope(Envelope("order", 3, 1, 1, 1, {"paid": "yes"})), "newer"),
        ("v1/short.json", seal_envelope(Envelope("order", 1, 1, 1, 1, {})), "refused"),
        ("v2/short.json", seal_envelope(Envelope("order", 2, 2, 1, 1, {})), "refused"),
        ("v2/notes.txt", b"", "stray"),
        ("v2/deep/paid.json", b"", "stray"),
        ("version2/paid.json", b"", "stray"),
        ("v02/paid.json", b"", "stray"),
    ],
)
def test_a_bad_fixture_is_found(fixtures: Path, place: str, stored: bytes, problem: str) -> None:
    """A3, B20: a file that is damaged, in the wrong place or not read any more is named, with all others still checked."""
    path = fixtures / "order" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stored)
    assert [(kind, where) for kind, _, where in problems(V2, fixtures)] == [(problem, f"order/{place}")]


def test_a_format_of_a_later_release_is_found(fixtures: Path) -> None:
    """Envelopes that this code does not know are not called damaged."""
    fields = {"v": 2, "schema": "order"}
    path = fixtures / "order/v1/later.json"
    path.write_bytes(canonical({**fields, "digest": ""}))
    assert problems(V2, fixtures) == [("corrupt", 1, "order/v1/later.json")]
    path.write_bytes(canonical({**fields, "digest": hashlib.sha256(canonical(fields)).hexdigest()}))
    assert problems(V2, fixtures) == [("newer", 1, "order/v1/later.json")]


def test_what_hides_and_what_belongs_to_others_is_left_alone(fixtures: Path) -> None:
    """Files of version control and fixtures of other schemas are no findings."""
    (fixtures / "order/v1/.gitkeep").touch()
    (fixtures / "bill/v9").mkdir(parents=True)
    (fixtures / "bill/v9/x.json").write_bytes(b"?")
    assert problems(V2, fixtures) == []


def test_a_migration_that_is_not_pure_is_found(fixtures: Path) -> None:
    """B18: what a counter, a clock or chance adds shows as data that is not read alike twice."""
    counter = itertools.count()
    kind = changed({1: lambda data: {"paid": str(next(counter))}})
    assert [problem for problem, _, _ in problems(kind, fixtures)] == ["unstable", "unstable"]


def test_a_migration_that_works_only_once_is_found(fixtures: Path) -> None:
    """B18: an exception on the second reading is a finding, and the check goes on."""
    seen: list[bool] = []

    def once(data: dict[str, Any]) -> dict[str, Any]:
        seen.append(data["paid"])
        return {"paid": "yes"} if seen.count(data["paid"]) == 1 else {}

    kind = changed({1: once})
    assert [problem for problem, _, _ in problems(kind, fixtures)] == ["unstable", "unstable"]


def test_a_line_end_is_no_damage_and_a_directory_no_fixture(fixtures: Path) -> None:
    """Whatever line ends version control makes; what cannot be read as a file is a finding."""
    path = fixtures / "order/v1/paid.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert problems(V2, fixtures) == []
    path.unlink()
    path.symlink_to(fixtures / "nowhere")
    assert problems(V2, fixtures) == [("corrupt", 1, "order/v1/paid.json")]


def test_a_class_that_changes_its_fields_is_found(fixtures: Path) -> None:
    """What is read and written again must be the same, for old states and for those of the present version."""

    @dataclass
    class Shouting:
        schema: ClassVar[str] = "order"
        version: ClassVar[int] = 2

        paid: str

        def __post_init__(self) -> None:
            self.paid += "!"

    migration(Shouting, from_version=1)(lambda data: {"paid": "yes"})
    assert [problem for problem, _, _ in problems(Shouting, fixtures)] == ["unstable", "unstable", "changed"]


def test_a_class_changed_without_a_new_version_is_found(fixtures: Path) -> None:
    """B20: the fixture of the present version no longer fits."""

    @dataclass
    class Changed:
        schema: ClassVar[str] = "order"
        version: ClassVar[int] = 2

        paid: str
        more: int = 0

    migration(Changed, from_version=1)(lambda data: {"paid": "yes", "more": 0})
    (finding,) = check_golden([Changed], fixtures).findings
    assert (finding.problem, finding.version) == ("refused", 2)
    assert "was Changed changed without a new version?" in finding.what


def test_a_step_down_that_fails_is_found(fixtures: Path) -> None:
    """B19: a writer that is pinned would fail in production first."""
    kind = changed({1: lambda data: {"paid": "yes"}})
    migration(kind, from_version=2, to_version=1)(lambda data: {"paid": data["pay"]})
    assert [problem for problem, _, _ in problems(kind, fixtures)] == ["pinned"] * 3


def test_a_state_that_can_be_read_but_not_written_is_found(fixtures: Path) -> None:
    """A value whose own class lets in what cannot be stored is named."""

    @dataclass
    class Odd:
        schema: ClassVar[str] = "order"
        version: ClassVar[int] = 2

        paid: str

        def __post_init__(self) -> None:
            self.paid = self.paid.encode()  # type: ignore[assignment]

    migration(Odd, from_version=1)(lambda data: {"paid": "yes"})
    assert [problem for problem, _, _ in problems(Odd, fixtures)] == ["unstable"] * 3


def test_an_unknown_version_that_is_let_in_is_found(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B20: the check itself makes a version that nobody knows, and says so when it is not refused."""

    def lax(stored: bytes, kind: type, where: str) -> Any:
        return None if where == "later" else decode(stored, kind, where)

    monkeypatch.setattr(golden, "decode", lax)
    assert [problem for problem, _, _ in problems(V2, fixtures)] == ["accepted"] * 3


def test_there_must_be_something_to_check(tmp_path: Path) -> None:
    """A directory that is not there, or no type at all, is a mistake and no success."""
    with pytest.raises(ConfigError, match="fixtures"):
        check_golden([V2], tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="states"):
        check_golden([], tmp_path)
