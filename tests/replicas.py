"""Replicas and the resource that they write to, as processes of a test: what `tests.program` starts, put together."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.program import Program


class Replicas:
    """A fenced sink with its ledger, and owners that write to it through the gate. All end with the ``with`` block."""

    def __init__(self, namespace: str, folder: Path, *, ttl: float = 2) -> None:
        self.namespace = namespace
        self.ttl = ttl
        self._ledger = folder / "ledger"
        self._stack = ExitStack()
        self._port = 0

    def __enter__(self) -> Replicas:
        sink = self._stack.enter_context(Program("sink", ledger=str(self._ledger)))
        self._port = sink.wait_for("listening")["port"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def owner(self, endpoint: str, **options: Any) -> Program:
        """Start a replica that queues for the name and writes while it owns it."""
        given = {"endpoint": endpoint, "namespace": self.namespace, "name": "n", "ttl": self.ttl, **options}
        return self._stack.enter_context(Program("owner", sink=self._port, **given))

    def ledger(self) -> list[dict[str, Any]]:
        """Every attempt to write, in the order in which the sink decided on them."""
        return [json.loads(line) for line in self._ledger.read_text().splitlines()] if self._ledger.exists() else []

    def attempts(self, token: int) -> list[dict[str, Any]]:
        """The attempts under one token."""
        return [entry for entry in self.ledger() if entry["token"] == token]


def accepted_in_order(ledger: list[dict[str, Any]]) -> bool:
    """Whether no older owner was accepted after a newer one."""
    tokens = [entry["token"] for entry in ledger if entry["accepted"]]
    return tokens == sorted(tokens)
