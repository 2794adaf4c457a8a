"""`OutsideWorld`: the outside world as a child process; `OutsideView`: one that runs already, by its address."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse, Unavailable
from leasekeeper.testing.homes import make_home
from leasekeeper.testing.outside.call import call
from leasekeeper.testing.outside.ledger import Count, Entry, counts, read_ledger
from leasekeeper.testing.outside.troubles import Trouble
from leasekeeper.testing.process import ChildProcess

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OutsideView", "OutsideWorld"]

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
WAIT_S = 30.0
POLL_S = 0.01
# Not ``-m``, which puts the current directory before everything, and with it whatever json.py lies there.
PROGRAM = """import sys
sys.path[:1] = sys.path[:1] if sys.path[0] else []
sys.path.append({root!r})
from leasekeeper.testing.outside.__main__ import main
main()"""
ROOT = Path(__file__).resolve().parents[3]


class OutsideView:
    """An outside world that runs somewhere, seen through its address: what is to go wrong there, and what happened."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def url(self) -> str:
        """Where it serves, as "http://127.0.0.1:port"."""
        return self._url

    def ledger(self) -> list[Entry]:
        """Every line so far."""
        return [Entry(**line) for line in call(self.url, "GET", "/__ledger")["lines"]]

    # -- what goes wrong

    def trouble(self, trouble: Trouble) -> None:
        """From the next request on; see `Trouble`."""
        call(self.url, "POST", "/__control", {"trouble": trouble.as_json()})

    def heal(self) -> None:
        """End all troubles, also delays that are under way."""
        call(self.url, "POST", "/__control", {"heal": True})

    # -- what happened

    def counts(self) -> dict[str, Count]:
        """How often each effect was asked for and happened, by "service.effect"."""
        return counts(self.ledger())

    def received(self, where: str, subject: str | None = None) -> list[Entry]:
        """The requests of "service.effect", those about one subject if it is named."""
        return self._lines("received", where, subject)

    def applied(self, where: str, subject: str | None = None) -> list[Entry]:
        """The effects of "service.effect", those about one subject if it is named."""
        return self._lines("applied", where, subject)

    def wait_applied(
        self, where: str, times: int = 1, *, subject: str | None = None, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until an effect has happened that often; Unavailable when it has not in time."""
        self._wait(lambda: len(self.applied(where, subject)) >= times, f"{where} happened {times} times", timeout_s)

    def wait_received(
        self, where: str, times: int = 1, *, subject: str | None = None, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until it was asked for that often; Unavailable when it was not in time."""
        self._wait(
            lambda: len(self.received(where, subject)) >= times, f"{where} was asked for {times} times", timeout_s
        )

    # -- within

    def _lines(self, kind: str, where: str, subject: str | None) -> list[Entry]:
        return [
            entry
            for entry in self.ledger()
            if entry.kind == kind and f"{entry.service}.{entry.effect}" == where and subject in (None, entry.subject)
        ]

    def _wait(self, happened: Callable[[], bool], what: str, timeout_s: float) -> None:
        if not _poll(happened, timeout_s):
            raise Unavailable(f"not within {timeout_s:g} s: {what}; so far {self.counts()}", operation="wait")


class OutsideWorld(OutsideView):
    """Payments, mail, fenced documents and a chat model over HTTP, with a ledger of all that they were asked and did.

    ``with OutsideWorld() as world`` starts a process that lives as long as this one at most (see `testing.process`) and
    outlives everybody else who uses it. `kill` and `start` are an outage: the port and all that happened stay.

    Args:
        directory: where ledger and log are; None: a temporary one that goes with this object.
        key_ttl_ms: when payments forget an idempotency key; 0: never.
    """

    def __init__(self, directory: Path | None = None, *, key_ttl_ms: int = 0) -> None:
        super().__init__("")
        self._directory = directory
        self._key_ttl_ms = key_ttl_ms
        self._port = 0
        self._process: ChildProcess | None = None

    # -- what it is

    @property
    def url(self) -> str:
        """Where it serves, as "http://127.0.0.1:port"; the same over every restart."""
        if not self._port:
            raise Misuse("this world was never started: use it in a with statement or call start()")
        return f"http://127.0.0.1:{self._port}"

    @property
    def home(self) -> Path:
        """The directory of ledger and log."""
        if self._directory is None:
            home = make_home()
            self._directory = home.path
            weakref.finalize(self, home.remove)
        return self._directory

    @property
    def ledger_path(self) -> Path:
        """The file that everything is written down in; see `ledger`."""
        return self.home / "ledger.jsonl"

    @property
    def pid(self) -> int:
        """The process id of the running world; Misuse when it does not run."""
        if self._process is None or not self._process.alive:
            raise Misuse("this world does not run")
        return self._process.pid

    # -- its life

    def start(self) -> None:
        """Start it, on the same port and with the same past as before; returns when it serves."""
        if self._process is not None and self._process.alive:
            raise Misuse("this world runs already")
        self.home.mkdir(parents=True, exist_ok=True)
        log = self.home / "outside.log"
        log.write_bytes(b"")
        program = PROGRAM.format(root=str(ROOT))
        flags = ["--ledger", str(self.ledger_path), "--port", str(self._port), "--key-ttl-ms", str(self._key_ttl_ms)]
        self._process = process = ChildProcess([sys.executable, "-c", program, *flags], log=log)
        said = _poll(lambda: _address(log) or not process.alive, READY_TIMEOUT_S)
        if not isinstance(said, int) or isinstance(said, bool):
            self.kill()
            raise Unavailable(f"the outside world does not start: {log.read_text(errors='replace')}", operation="start")
        self._port = said

    def kill(self) -> None:
        """End it at once; who asks is refused a connection."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        """End it; the ledger can still be read, and the world be started again."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ledger(self) -> list[Entry]:
        """Every line so far, read from the file: also when the world does not run."""
        return read_ledger(self.ledger_path)


def _poll(condition: Callable[[], Any], timeout_s: float) -> Any:
    until_s = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    return value


def _address(log: Path) -> int:
    """The port that the world says it serves on, 0 while it has said nothing."""
    first, end, _ = log.read_text(errors="replace").partition("\n")
    return int(first.rpartition(":")[2]) if end and first.startswith("http://") else 0
