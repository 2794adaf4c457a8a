"""Run the blocks of one page in order, as a reader would who follows it from top to bottom."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from leasekeeper.errors import LeasekeeperError
from tests.docs.blocks import RUN, Block, Command, commands

SHOWN_ENDPOINT = "127.0.0.1:2379"
"""What pages write; the server of the test listens elsewhere, so this is replaced in what runs."""

BLOCK_TIMEOUT_S = 60.0
SEPARATOR = "\x1e"
END_OF_SHELL = "status=$?; set +e; kill $(jobs -p) 2>/dev/null; wait; exit $status"
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(slots=True)
class Reader:
    """One reader of one page: a directory, a Python namespace, an event loop, an etcd and where its tools are."""

    page: Path
    directory: Path
    endpoint: str
    tools: Path | None = None
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    output: str | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def close(self) -> None:
        """End the page's event loop and close the databases that a script would close by ending."""
        for value in self.names.values():
            if isinstance(value, sqlite3.Connection):
                value.close()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def follow(self, block: Block) -> None:
        """Do what the block and its markers say; AssertionError names the line that is wrong."""
        if block.skipped:
            self.output = None
        elif "file" in block.markers:
            target = self.directory / block.markers["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.real(block.text), encoding="utf-8")
        elif "output" in block.markers:
            if self.output is not None:
                self.compare(block.line, block.text, self.output)
        elif block.language in ("python", "setup"):
            self.output = self.python(block)
        elif block.language in RUN:
            self.output = self.shell(block)

    def real(self, text: str) -> str:
        """Put the endpoint of the running server where the page writes the usual one."""
        shown = (SHOWN_ENDPOINT, SHOWN_ENDPOINT.replace("127.0.0.1", "localhost"))
        for endpoint in shown:
            text = text.replace(endpoint, self.endpoint)
        return text

    def compare(self, line: int, want: str, got: str) -> None:
        """Fail unless ``got`` is what the page shows, where ``...`` stands for anything."""
        got = got.replace(self.endpoint, SHOWN_ENDPOINT).strip() + "\n"
        want = want.strip() + "\n"
        if not doctest.OutputChecker().check_output(want, got, LOOSE):
            raise AssertionError(f"{self.page}:{line}: the page shows\n{want}\nit printed\n{got}")

    # --- Python ------------------------------------------------------------------------------

    def python(self, block: Block) -> str:
        """Run Python in the page's namespace; return what it printed."""
        source = "\n" * (block.line - 1) + self.real(block.text)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, str(self.page), "exec", flags=flags, dont_inherit=True)
        expected = block.markers.get("raises")
        printed = io.StringIO()
        raised = None
        with contextlib.redirect_stdout(printed):
            try:
                result = eval(code, self.names)
                if inspect.iscoroutine(result):
                    self.loop.run_until_complete(result)
            except (Exception, LeasekeeperError) as error:
                if type(error).__name__ != expected:
                    raise
                raised = error
        if expected and raised is None:
            raise AssertionError(f"{self.page}:{block.line}: the page says it raises {expected}")
        return printed.getvalue()

    # --- shell -------------------------------------------------------------------------------

    def shell(self, block: Block) -> str:
        """Run a block of commands in one shell; compare statuses and outputs; return the output."""
        if block.language == "bash":
            status, output = self.bash("set -euo pipefail\n" + self.real(block.text), block)
            if status:
                raise AssertionError(f"{self.page}:{block.line}: exit status {status}\n{output}")
            return output
        told = commands(block)
        mark = f"printf '{SEPARATOR}%d{SEPARATOR}' $?"
        script = "\n".join(f"{self.real(command.text)}\n{mark}" for command in told)
        status, output = self.bash(script, block)
        parts = output.split(SEPARATOR)
        if len(parts) != 2 * len(told) + 1:
            raise AssertionError(f"{self.page}:{block.line}: the shell ended early\n{output}")
        statuses, outputs = [int(part) for part in parts[1::2]], parts[0::2]
        self.judge(block, told, statuses, outputs)
        return "".join(outputs)

    def judge(self, block: Block, told: list[Command], statuses: list[int], outputs: list[str]) -> None:
        """Fail on the first command whose exit status or output is not what the page says."""
        expected = [0] * len(told)
        expected[-1] = int(block.markers.get("exit", 0))
        for command, status, right, output in zip(told, statuses, expected, outputs, strict=False):
            if status != right:
                where = f"{self.page}:{block.line}: $ {command.text}"
                raise AssertionError(f"{where}\nexit status {status}, not {right}\n{output}")
            if command.output:
                self.compare(block.line, command.output, output)

    def bash(self, script: str, block: Block) -> tuple[int, str]:
        """Run a script; return its status and its output. What it left running is ended."""
        shell = subprocess.Popen(
            ["bash", "-c", f"trap '{END_OF_SHELL}' EXIT\n{script}"],
            cwd=self.directory,
            env=self.shell_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with shell:
            try:
                output, _ = shell.communicate(timeout=BLOCK_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)
                output, _ = shell.communicate()
                text = f"{self.page}:{block.line}: not done within {BLOCK_TIMEOUT_S:g} s\n{output}"
                raise AssertionError(text) from None
        return shell.returncode, output

    def shell_environment(self) -> dict[str, str]:
        """The shell's environment: this Python's programs first, plain text, the test's etcd."""
        programs = [str(Path(sys.executable).parent), *([str(self.tools)] if self.tools else [])]
        return {
            **os.environ,
            "PATH": os.pathsep.join([*programs, os.environ.get("PATH", os.defpath)]),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "LEASEKEEPER_ENDPOINTS": self.endpoint,
            "ETCDCTL_ENDPOINTS": self.endpoint,
        }
