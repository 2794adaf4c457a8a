"""The rules of the house that no tool of ours checks: sizes, names, threads, signals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasekeeper

PACKAGE = Path(leasekeeper.__file__).parent
MODULES = [
    module
    for module in sorted(PACKAGE.rglob("*.py"))
    if module.name != "etcd_pb2.py"  # generated
]

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
EMPTY_WORDS = {"manager", "helper", "helpers", "util", "utils", "handler", "wrapper", "base"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.relative_to(PACKAGE).as_posix())


def definitions(module: Path) -> Iterator[Definition]:
    """Every class and function that a module defines, at any depth."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, Definition):
            yield node


def calls(module: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a module, with the dotted name that is called."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def is_program(module: Path) -> bool:
    """True for the command line, for what runs as a process of its own, and for what only pytest, a program, imports."""
    place = module.relative_to(PACKAGE)
    if "cli" in place.parts or place == Path("testing/terminate.py"):
        return True
    return 'if __name__ == "__main__":' in module.read_text(encoding="utf-8")


def words(name: str) -> set[str]:
    """The words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@each_module
def test_a_module_has_one_idea(module: Path) -> None:
    """A module stays below 400 lines and a function below 60; past that a room is missing."""
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES_MAX
    for node in definitions(module):
        if not isinstance(node, ast.ClassDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name}: {length} lines"


@each_module
def test_names_say_something(module: Path) -> None:
    """No module, class or function is named by a word that says nothing of the field."""
    for name in [module.stem, *(node.name for node in definitions(module))]:
        assert not words(name) & EMPTY_WORDS, name


@each_module
def test_threads_are_named_and_daemons(module: Path) -> None:
    """Each thread can be recognised in a dump and keeps no process alive."""
    for called, node in calls(module):
        if called not in ("Thread", "threading.Thread"):
            continue
        given = {word.arg: word.value for word in node.keywords}
        assert {"name", "daemon"} <= given.keys(), f"line {node.lineno}: a thread without a name"
        assert ast.unparse(given["daemon"]) == "True"
        named_here = "leasekeeper-" in ast.unparse(given["name"])
        assert named_here or isinstance(given["name"], (ast.Name, ast.Attribute))  # given by a caller


@each_module
def test_the_library_leaves_the_process_alone(module: Path) -> None:
    """Signal handlers, logging and exit hooks belong to a program, not to what it imports."""
    forbidden = {"signal.signal", "logging.basicConfig", "atexit.register", "warnings.simplefilter"}
    if not is_program(module):
        assert not forbidden & {called for called, _ in calls(module)}


@each_module
def test_a_module_begins_with_its_purpose(module: Path) -> None:
    """Each module's first paragraph says what it is for."""
    assert ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
