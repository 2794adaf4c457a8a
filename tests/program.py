"""Processes of a test's own, started from ``tests/programs``: told by lines on stdin, heard by JSON lines on stdout.

Every report carries the time of the clock that all processes of a machine share, so that what two of them did can be put
in order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import until

ROOT = Path(__file__).parent.parent
START_S = 30.0


class Program:
    """One running program and all that it has reported. A context manager that ends it by its pid."""

    def __init__(self, name: str, /, **options: Any) -> None:
        self.name = name
        self.reports: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.programs.{name}", json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Fork support slows gRPC down and nothing here forks after a call.
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            text=True,
        )
        self.pid = self._process.pid
        self._errors = ""
        self._readers = [
            threading.Thread(target=self._read, name=f"{name}-reports", daemon=True),
            threading.Thread(target=self._read_errors, name=f"{name}-errors", daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # what was not read before it died
        for reader in self._readers:
            reader.join(START_S)
        self._process.stdout.close()
        self._process.stderr.close()

    # ------------------------------------------------------------ listening

    def all(self, event: str) -> list[dict[str, Any]]:
        """Every report of one kind so far."""
        return [report for report in list(self.reports) if report["event"] == event]

    def wait_for(self, event: str, timeout_s: float = START_S) -> dict[str, Any]:
        """The first report of one kind, as soon as it has come."""
        return self.wait_for_more(event, 1, timeout_s)[0]

    def wait_for_more(self, event: str, count: int, timeout_s: float = START_S) -> list[dict[str, Any]]:
        """At least ``count`` reports of one kind."""

        def enough() -> list[dict[str, Any]]:
            # Looked at in this order: a program that has ended reports nothing more.
            ended = not self.alive and not self._readers[0].is_alive()
            found = self.all(event)
            if ended and len(found) < count:
                raise AssertionError(f"{self.name} ended before {event}: {self.reports[-5:]} {self._errors[-2000:]}")
            return found if len(found) >= count else []

        return until(enough, timeout_s)

    @property
    def alive(self) -> bool:
        """Whether it runs or is stopped."""
        return self._process.poll() is None

    def end(self, timeout_s: float = START_S) -> int:
        """Wait for its end: its exit status."""
        status = self._process.wait(timeout_s)
        self._readers[0].join(timeout_s)
        return status

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._errors

    # ------------------------------------------------------------ telling

    def tell(self, line: str) -> None:
        """One line on its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """A signal to this process alone."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop it until `thaw`."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    @property
    def frozen(self) -> bool:
        """Whether every thread of it stands still."""
        states = [
            stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")
        ]
        return bool(states) and all(state in "Tt" for state in states)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self.alive:
            self._process.kill()
        self._process.wait(START_S)

    # ------------------------------------------------------------ within

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.reports.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors += line
