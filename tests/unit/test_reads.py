"""What the library may ask of etcd at all: linearizable reads, and leases of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasekeeper
from leasekeeper.protocol import plan

PACKAGE = Path(leasekeeper.__file__).parent
MODULES = [module for module in sorted(PACKAGE.rglob("*.py")) if module.name != "etcd_pb2.py"]


def said(module: Path) -> Iterator[str]:
    """Every name, attribute, keyword and text that a module spells, but for its docstrings' words."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case (
                ast.keyword(arg=str(name))
                | ast.Attribute(attr=name)
                | ast.Name(id=name)
                | ast.Constant(value=str(name))
            ):
                yield name


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.relative_to(PACKAGE).as_posix())
def test_no_read_is_serializable(module: Path) -> None:
    """A30: nothing that is shipped ever sets ``serializable``, so no member answers from what it remembers."""
    simulates = "sim" in module.relative_to(PACKAGE).parts  # a model of etcd has to know what it is asked
    assert simulates or "serializable" not in set(said(module))


def test_no_service_of_etcd_that_makes_leases_of_its_own() -> None:
    """C45: of etcd's methods the library knows none of the Lock and Election services, which bring leases that nobody renews."""
    methods = [value for value in vars(plan).values() if isinstance(value, plan.Method)]
    services = {method.path.split("/")[1] for method in methods} | {plan.WATCH_PATH.split("/")[1]}
    assert {f"etcdserverpb.{name}" for name in ("KV", "Lease", "Watch")} <= services
    assert not [service for service in services if "lock" in service.lower() or "election" in service.lower()]
