"""The command line under test: called in this process, or started as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from click.testing import CliRunner

from leasekeeper.cli.program import program
from leasekeeper.testing.binary import VARIABLE
from tests.support import until

ROOT = Path(__file__).parent.parent
END_S = 40.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON value on stdout."""
        return json.loads(self.out)


def environment(endpoint: str | None, namespace: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with nothing in it that the command line would read but what is given.

    Nor what changes how Python writes: users have no PYTHONUNBUFFERED.
    """
    foreign = ("LEASEKEEPER_", "ETCDCTL_", "PYTHONUNBUFFERED")
    clean = {k: v for k, v in os.environ.items() if k == VARIABLE or not k.startswith(foreign)}
    wanted = {"LEASEKEEPER_ENDPOINTS": endpoint, "LEASEKEEPER_NAMESPACE": namespace}
    return {**clean, **{k: v for k, v in wanted.items() if v is not None}, **(more or {})}


def _runner() -> CliRunner:
    try:
        return CliRunner(mix_stderr=False)  # type: ignore[call-arg]
    except TypeError:
        return CliRunner()  # newer releases of click keep them apart by themselves


def call(
    *args: str,
    endpoint: str | None = None,
    namespace: str | None = None,
    env: Mapping[str, str] | None = None,
    answer: str | None = None,
) -> Ended:
    """Run a command here. ``answer`` is what stands on stdin."""
    wanted: dict[str, str | None] = dict.fromkeys(os.environ, None)
    wanted.update(environment(endpoint, namespace, env))
    result = _runner().invoke(program, list(args), input=answer, env=wanted)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


class Command:
    """A command as a process of its own. A context manager that ends it by its pid."""

    def __init__(
        self,
        *args: str,
        endpoint: str | None = None,
        namespace: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leasekeeper", *args],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(endpoint, namespace, {"PYTHONUNBUFFERED": "1", **(env or {})}),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, kept), name=f"command-{name}", daemon=True)
            for name, stream, kept in (
                ("out", self.process.stdout, self.lines),
                ("err", self.process.stderr, self._errors),
            )
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, kept: list[str]) -> None:
        kept.extend(iter(stream.readline, ""))

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    @property
    def out(self) -> str:
        """What it wrote to stdout so far."""
        return "".join(self.lines)

    @property
    def err(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._errors)

    def json_lines(self) -> list[dict[str, Any]]:
        """The whole lines on stdout so far, each a JSON value."""
        return [json.loads(line) for line in list(self.lines) if line.endswith("\n")]

    def until(self, predicate: Callable[[], Any]) -> Any:
        """Wait until ``predicate`` is true while it runs, and return its value."""

        def checked() -> Any:
            ended = self.process.poll() is not None
            value = predicate()
            if ended and not value:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.out[-2000:]} {self.err[-2000:]}")
            return value

        return until(checked)

    def signal(self, number: int) -> None:
        """A signal to this process alone."""
        self.process.send_signal(number)

    def end(self, timeout_s: float = END_S) -> Ended:
        """Wait for its end."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return Ended(code, self.out, self.err)
