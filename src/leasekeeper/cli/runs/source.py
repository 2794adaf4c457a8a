"""Where a run is read from: etcd, at one revision, or the file that it was exported to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from leasekeeper.cli.values import run_argument
from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.protocol.run_keys import RunKeys, RunName, seq_of
from leasekeeper.protocol.run_look import Compacted, Facts, beside_page, facts, record_page
from leasekeeper.run_errors import ILLEGIBLE, CorruptState

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.cli.settings import Settings
    from leasekeeper.protocol.run_look import Pair
    from leasekeeper.run_records import Receipt
    from leasekeeper.runtime.core import Core

__all__ = ["EtcdRun", "FileRun", "Late", "Source", "read_exported", "reading", "run_or_file"]

T = TypeVar("T")

LATES_MAX = 100
TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class Late:
    """What an owner left that had lost its lease, about the intent of record ``seq``.

    ``receipt`` None: it cannot be read, and ``why``.
    """

    seq: int
    receipt: Receipt | None
    why: str = ""


class EtcdRun:
    """A run in etcd. Each iterator reads as it goes, page by page."""

    def __init__(self, core: Core, name: RunName, ask_s: float) -> None:
        self._core = core
        self._ask_s = ask_s
        self.keys = RunKeys(core.ctx.keys, name)
        self.facts: Facts = core.run(facts(core.ctx, self.keys, core.until(ask_s)))

    def records(self) -> Iterator[tuple[int | None, bytes]]:
        """The number of each record's place, and what stands there."""
        yield from self._pages(partial(record_page, self._core.ctx, self.keys))

    def steps(self) -> Iterator[Pair]:
        """The keys of its steps, and what stands there."""
        yield from self._beside(self.keys.steps)

    def checkpoints(self) -> Iterator[Pair]:
        """The keys of its checkpoints, and what stands there."""
        yield from self._beside(self.keys.checkpoints)

    def lates(self) -> Iterator[Late]:
        """What was left too late; so many at most."""
        for number, (key, stored) in enumerate(self._beside(self.keys.lates)):
            if number == LATES_MAX:
                return
            seq = seq_of(key.rpartition(b"/")[0])
            try:
                yield Late(seq, read_receipt(stored, "it"))
            except ILLEGIBLE as error:
                yield Late(seq, None, error.why)

    def _beside(self, prefix: bytes) -> Iterator[Pair]:
        return self._pages(partial(beside_page, self._core.ctx, prefix))

    def _pages(self, page: Callable[..., Any]) -> Iterator[Any]:
        start: bytes | None = None
        while True:
            core = self._core
            found, start = core.run(page(start, self.facts.revision, core.until(self._ask_s)))
            yield from found
            if start is None:
                return


class FileRun:
    """A run as it was exported. Of what stands beside its records, only head and first facts are there."""

    def __init__(self, path: str) -> None:
        from leasekeeper.runs.export import read_export

        self._path = path
        with read_exported(path) as stream:
            self.header = read_export(stream).header
        now, why = None, "it had no head when it was exported"
        if self.header.head:
            try:
                now = read_head(self.header.head, "the head")
            except ILLEGIBLE as error:
                why = f"its head cannot be trusted: {error.why}"
        self.facts = Facts(
            name=_name(self.header.workflow, self.header.id),
            meta=self.header.meta or None,
            head=self.header.head or None,
            namespace_id=self.header.namespace_id,
            now=now,
            head_why=why,
        )

    def records(self) -> Iterator[tuple[int | None, bytes]]:
        """Each record as it stands in the file; CorruptState for a file that is damaged around them."""
        from leasekeeper.runs.export import Record, read_export

        with read_exported(self._path) as stream:
            for line in read_export(stream):
                if isinstance(line, Record):
                    yield line.seq, line.stored

    def lates(self) -> Iterator[Late]:
        """None: they are not exported."""
        return iter(())


Source = EtcdRun | FileRun


def _name(workflow: str, run_id: str) -> RunName:
    try:
        return RunName(workflow, run_id)
    except ConfigError as error:
        raise CorruptState(
            f"the header cannot be trusted: {error.message}", where="the header", why=error.message
        ) from None


def reading(settings: Settings, run: RunName | None, path: str | None, work: Callable[[Source], T]) -> T:
    """What ``work`` makes of the run that was asked for, from etcd or from a file: one of the two.

    ``work`` must not print: it is done again where etcd compacts away what it reads.
    """
    if (run is None) == (path is None):
        raise click.UsageError("say RUN, or --file with an export of it")
    if path is not None:
        return work(FileRun(path))
    assert run is not None
    with settings.keeper() as keeper:
        for _ in range(TRIES_MAX):
            try:
                return work(EtcdRun(keeper._core, run, settings.ask_s))
            except Compacted:
                continue
    raise Unavailable(f"etcd compacts faster than run {run} can be read: try again", operation="Range")


@contextmanager
def read_exported(path: str, field: str = "--file") -> Iterator[BinaryIO]:
    """A file of the user's, open for reading; ConfigError for one that cannot be."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 - closed below; what is wrong with the name is told apart from the rest
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it has a NUL in it"
        raise ConfigError(field=field, value=path, expected=f"a file that can be read: {why}") from None
    with stream:
        try:
            yield stream
        except IsADirectoryError as error:
            raise ConfigError(field=field, value=path, expected=f"a file that can be read: {error.strerror}") from None


def run_or_file(function: Any) -> Any:
    """The argument RUN, or the option --file in its place."""
    option = click.option("--file", "path", metavar="EXPORT", help="Read an export of the run instead; asks no etcd.")
    return run_argument(required=False)(option(function))
