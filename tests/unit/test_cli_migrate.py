"""`leasekeeper migrate`: what it takes for states, what it says of fixtures, and its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.cli.states import find_states
from leasekeeper.errors import ConfigError, LeasekeeperError
from tests.commands import Ended, call

STATES = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leasekeeper.runs.schema import migration


@dataclass(frozen=True)
class Order:
    schema: ClassVar[str] = "order"
    version: ClassVar[int] = 1

    paid: bool
    items: list[Item]


@dataclass(frozen=True)
class Item:
    sku: str


PAID = Order(True, [Item("a")])
OPEN = Order(False, [])
_HIDDEN = Order(False, [Item("b")])
NUMBER = 1
"""
SECOND = STATES.replace("] = 1\n", "] = 2\n").replace("paid: bool", "paid: str").replace("Order(True", 'Order("yes"')
SECOND = SECOND.replace("Order(False", 'Order("no"')
STEP = """
@migration(Order, from_version=1)
def as_text(data):
    return {**data, "paid": "yes" if data["paid"] else "no"}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to be in; what is imported from it, and the path to it, are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def migrate(*args: str) -> Ended:
    """Run the command on fixtures in ``golden``, as if it were a process of its own."""
    for name in ("orders", "bills"):
        sys.modules.pop(name, None)
    return call("migrate", *args, "--fixtures", "golden")


def test_a_schema_lives_through_its_releases(place: Path) -> None:
    """B20: write the fixture of version 1, release, raise the version: only the migration makes the check pass again."""
    module = place / "orders.py"
    module.write_text(STATES)
    written = migrate("--write", "--check", "orders")
    assert written.code == 0
    assert written.out.splitlines() == [
        "written: order/v1/PAID.json",
        "written: order/v1/OPEN.json",
        "2 fixtures of order up to version 1: nothing wrong.",
    ]
    module.write_text(SECOND)
    without = migrate("--check", "orders")
    assert without.code == 1
    assert "declaration" in without.out
    assert "@migration(Order, from_version=1)" in without.out
    module.write_text(SECOND + STEP)
    missing = migrate("--check", "orders")
    assert missing.code == 1
    assert "version 2 has no fixture: write one with --write" in missing.out
    assert "2 fixtures of order up to version 2: 1 finding." in missing.out
    assert migrate("--write", "--check", "orders").code == 0
    assert migrate("--check", "orders").out == "4 fixtures of order up to version 2: nothing wrong.\n"


def test_findings_are_told_to_programs(place: Path) -> None:
    """The JSON has every finding with its place, and always the same fields."""
    (place / "orders.py").write_text(STATES)
    only = migrate("--write", "orders:PAID", "-o", "json")
    assert (only.code, only.json["written"], only.json["ok"]) == (0, ["order/v1/PAID.json"], None)
    (place / "golden/order/v1/PAID.json").write_bytes(b"{}")
    told = migrate("--check", "orders.py:Order", "-o", "json")
    assert told.code == 1
    assert told.json == {
        "ok": False,
        "fixtures": 1,
        "schemas": [{"schema": "order", "version": 1}],
        "findings": [
            {
                "schema": "order",
                "version": 1,
                "fixture": "order/v1/PAID.json",
                "problem": "corrupt",
                "what": "its bytes are not those that were written: the digest is wrong",
            }
        ],
        "written": [],
    }
    assert only.json.keys() == told.json.keys()


def test_names_choose(place: Path) -> None:
    """Without names it is all that declares a version; with names, just those, also what declares nothing."""
    (place / "orders.py").write_text(STATES)
    sys.path.insert(0, str(place))
    whole = find_states(["orders"])
    assert ([kind.__name__ for kind in whole.kinds], list(whole.examples)) == (["Order"], ["PAID", "OPEN"])
    some = find_states(["orders:Item,OPEN", "orders:OPEN"])
    assert ([kind.__name__ for kind in some.kinds], list(some.examples)) == (["Item", "Order"], ["OPEN"])


def test_a_file_needs_no_package(place: Path) -> None:
    """A file is loaded from where it is, and annotations in it are resolved."""
    (place / "deep").mkdir()
    (place / "deep/orders.py").write_text(STATES)
    assert migrate("--write", "--check", "deep/orders.py").code == 0
    assert migrate("--check", f"{place}/deep/orders.py:PAID").code == 0


def test_a_file_hides_no_module(place: Path) -> None:
    """A file may be called as a module of the standard library, which stays what it is."""
    (place / "json.py").write_text(STATES)
    before = sys.modules["json"]
    assert migrate("--write", "--check", "json.py").code == 0
    assert sys.modules["json"] is before


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("nowhere", "a module that can be loaded (ModuleNotFoundError"),
        ("nowhere.py", "there is no file"),
        ("broken", "ZeroDivisionError"),
        ("leaving.py", "SystemExit"),
        ("orders:Nobody", "called Nobody"),
        ("orders:NUMBER", "called NUMBER"),
        ("orders:", "MODULE or FILE.py"),
        (":Order", "MODULE or FILE.py"),
        ("orders:Order,", "MODULE or FILE.py"),
        ("no/module", "MODULE or FILE.py"),
        ("empty", "a dataclass that declares"),
        ("", "MODULE or FILE.py"),
    ],
)
def test_what_is_no_state_is_said(place: Path, named: str, why: str) -> None:
    """A wrong name is a ConfigError that shows it, whatever the module does when it is loaded; the exit code is 2."""
    (place / "orders.py").write_text(STATES)
    (place / "broken.py").write_text("1 / 0")
    (place / "leaving.py").write_text("raise SystemExit(0)")
    (place / "empty.py").write_text("x = 1")
    (place / "golden").mkdir()
    ended = migrate("--check", named)
    assert (ended.code, ended.out) == (2, "")
    assert why in ended.err
    assert ended.err.count("\n") == 1
    assert not {"broken", "leaving.py"} & set(sys.modules)


def test_two_states_of_one_name_are_refused(place: Path) -> None:
    """Each would be the fixture of the other."""
    (place / "orders.py").write_text(STATES)
    (place / "bills.py").write_text(STATES.replace('"order"', '"bill"'))
    sys.path.insert(0, str(place))
    with pytest.raises(ConfigError, match="PAID"):
        find_states(["orders", "bills"])


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["orders"], "say --check, --write, or both"),
        (["--check"], "STATES"),
        (["--check", "orders"], "--fixtures='golden': expected a directory"),
        (["--write", "orders:Order"], "STATES='orders:Order': expected a module in which states stand under names"),
    ],
)
def test_what_is_missing_is_said(place: Path, args: list[str], why: str) -> None:
    """Exit code 2 for a call that asks for nothing, or for what is not there; and nothing is written."""
    (place / "orders.py").write_text(STATES)
    ended = migrate(*args)
    assert ended.code == 2
    assert why in ended.err
    assert not (place / "golden").exists()


def test_an_error_names_what_was_typed(place: Path) -> None:
    """The option or argument as it stands on the command line, whatever the library calls it; a wrong place is no bug."""
    (place / "orders.py").write_text(STATES)
    (place / "golden").mkdir()
    (place / "golden/order").touch()
    blocked = migrate("--write", "orders")
    assert (blocked.code, blocked.err.count("\n")) == (2, 1)
    assert "--fixtures='golden': expected a directory in which files can be read and written (" in blocked.err
    assert "golden/order" in blocked.err
    long = "P" * 101
    (place / "orders.py").write_text(STATES.replace("PAID =", f"{long} ="))
    named = migrate("--write", f"orders:{long}")
    assert (named.code, named.err.count("\n")) == (2, 1)
    assert f"STATES='{long}': expected 1 to 100 letters" in named.err
    a_file = call("migrate", "--check", "orders", "--fixtures", "orders.py")
    assert a_file.code == 2
    assert "--fixtures" in a_file.err


def test_a_released_fixture_is_not_overwritten(place: Path) -> None:
    """--write refuses another state under a name that is taken, and says what to do."""
    (place / "orders.py").write_text(STATES)
    assert migrate("--write", "orders").code == 0
    (place / "orders.py").write_text(STATES.replace("PAID = Order(True", "PAID = Order(False"))
    ended = migrate("--write", "orders")
    assert ended.code == 2
    assert "a released fixture never changes" in ended.err


def test_names_from_files_cannot_act_on_a_terminal(place: Path) -> None:
    """What stands in a directory is shown as escapes."""
    (place / "orders.py").write_text(STATES)
    assert migrate("--write", "orders").code == 0
    (place / "golden/order/v1/\x1b[2J.txt").touch()
    ended = migrate("--check", "orders")
    assert ended.code == 1
    assert "\x1b" not in ended.out
    assert "\\x1b[2J.txt" in ended.out


def test_only_ours_is_raised(place: Path) -> None:
    """Every way to name states wrongly is in the tree of errors."""
    for named in (":", "::", "a:b:c", "..", "a..b", "x.py:", "\0"):
        with pytest.raises(LeasekeeperError):
            find_states([named])
