"""The anchor that is a file: what it takes, what it refuses, and what shows when somebody has been at it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.protocol.receipt import FIRST_PREV
from leasekeeper.run_errors import AnchorSkewed, CorruptState, RunRewound
from leasekeeper.runs import anchor_file as module
from leasekeeper.runs.anchor import Anchor, Anchored, FileAnchor, anchored_in

NOW_S = 1_796_000_000.0
NOW_MS = 1_796_000_000_000
RUN = "order/42"


def digest(seq: int) -> str:
    """A record's hash."""
    return f"{seq:064x}"


def head(seq: int, at_ms: int = NOW_MS, run: str = RUN, gen: int = 1) -> Anchored:
    """A head."""
    return Anchored(run, gen, seq, digest(seq), at_ms)


def tell(anchor: Anchor, seq: int, at_ms: int = NOW_MS, run: str = RUN, gen: int = 1) -> Anchored:
    """Have a head remembered."""
    anchor.remember(run, gen, seq, digest(seq), at_ms)
    return head(seq, at_ms, run, gen)


def open_anchor(path: Path, **settings: float) -> FileAnchor:
    """An anchor in a file, as a process just begun would open it, at a fixed time."""
    return FileAnchor(path, now_s=lambda: NOW_S, **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the anchor is."""
    return tmp_path / "anchor.jsonl"


@pytest.fixture
def anchor(path: Path) -> FileAnchor:
    """An anchor that remembers nothing."""
    return open_anchor(path)


def everything(path: Path) -> list[Anchored]:
    """All that the file remembers, by reading it forwards."""
    with path.open("rb") as lines:
        return list(anchored_in(lines))


# ---------------------------------------------------------------- remembering


def test_the_last_head_is_remembered(path: Path, anchor: FileAnchor) -> None:
    """A5: Each run and generation has a last head of its own, which another process reads as it was given."""
    assert anchor.last(RUN, 1) is None
    assert not path.exists()
    told = [tell(anchor, 1), tell(anchor, 2), tell(anchor, 9, run="order/4"), tell(anchor, 5, gen=11), tell(anchor, 4)]
    assert everything(path) == told
    for reader in (anchor, open_anchor(path)):
        assert reader.last(RUN, 1) == head(4)
        assert reader.last(RUN, 11) == head(5, gen=11)
        assert reader.last("order/4", 1) == head(9, run="order/4")
        assert reader.last("order/4", 2) is None
        assert reader.last("order", 1) is None


def test_the_same_again_changes_nothing(path: Path, anchor: FileAnchor) -> None:
    """A head that is remembered already is not written twice, by whomever it is told."""
    tell(anchor, 1)
    before = path.read_bytes()
    tell(anchor, 1)
    tell(open_anchor(path), 1)
    assert path.read_bytes() == before


def test_what_was_written_is_never_changed(path: Path, anchor: FileAnchor) -> None:
    """Lines are only appended, also below a piece: the file may be one that the system lets nobody change."""
    before = b""
    for seq in range(1, 6):
        tell(anchor, seq)
        now = path.read_bytes()
        assert now.startswith(before)
        with path.open("ab") as file:
            file.write(now[-40:-1])
        before = path.read_bytes()
    assert everything(path) == [head(seq) for seq in range(1, 6)]


def test_a_lower_number_is_a_rewound_run(path: Path, anchor: FileAnchor) -> None:
    """A21: A head before the one that is remembered is refused with both numbers, and nothing is written."""
    tell(anchor, 5)
    before = path.read_bytes()
    with pytest.raises(RunRewound) as rewound:
        tell(open_anchor(path), 4)
    assert (rewound.value.run, rewound.value.have, rewound.value.known) == (RUN, 4, 5)
    assert path.read_bytes() == before


def test_another_record_of_one_number_is_a_rewound_run(path: Path, anchor: FileAnchor) -> None:
    """A5: A fork shows: another hash at the number that is remembered is refused."""
    tell(anchor, 5)
    with pytest.raises(RunRewound, match=f"record 5 of {RUN} in etcd is another"):
        anchor.remember(RUN, 1, 5, digest(6), NOW_MS)
    assert everything(path) == [head(5)]


@pytest.mark.parametrize("at_ms", [NOW_MS + 60_001, NOW_MS - 60_001])
def test_a_time_that_cannot_be_right_is_refused(path: Path, anchor: FileAnchor, at_ms: int) -> None:
    """A clock-skewed anchor: a record from the future, or from before the last one, is refused and named."""
    tell(anchor, 1)
    with pytest.raises(AnchorSkewed, match="clock-skewed anchor") as skewed:
        tell(anchor, 2, at_ms)
    assert (skewed.value.run, skewed.value.seq, skewed.value.anchor) == (RUN, 2, str(path))
    assert everything(path) == [head(1)]


def test_clocks_that_differ_a_little_pass(anchor: FileAnchor) -> None:
    """Two machines' clocks are never the same; within the bound a time may be ahead, or behind the last one."""
    tell(anchor, 1)
    tell(anchor, 2, NOW_MS + 60_000)
    tell(anchor, 3, NOW_MS)
    tell(anchor, 1, NOW_MS - 10**9, run="order/43")  # an older run, told for the first time
    assert anchor.last(RUN, 1) == head(3)


# ---------------------------------------------------------------- giving up


def forget(anchor: Anchor, run: str = RUN, gen: int = 1, at_ms: int = NOW_MS, why: str = "") -> Anchored:
    """Tell it that nothing of a run is left."""
    anchor.accept(run, gen, 0, FIRST_PREV, at_ms, why)
    return Anchored(run, gen, 0, FIRST_PREV, at_ms, back=True, why=why)


def test_a_run_that_is_gone_is_remembered_no_longer(path: Path, anchor: FileAnchor) -> None:
    """A21: Back to record 0, nothing of that generation is known, and the run may begin again, also with other records."""
    told = [tell(anchor, 1), tell(anchor, 5), tell(anchor, 3, gen=2), tell(anchor, 4, run="order/4")]
    before = path.read_bytes()
    told.append(forget(anchor, why="the restore of Monday"))
    assert path.read_bytes().startswith(before)
    for reader in (anchor, open_anchor(path)):
        assert reader.last(RUN, 1) is None
        assert reader.last(RUN, 2) == head(3, gen=2)
        assert reader.last("order/4", 1) == head(4, run="order/4")
    anchor.remember(RUN, 1, 1, digest(99), NOW_MS)
    assert open_anchor(path).last(RUN, 1) == Anchored(RUN, 1, 1, digest(99), NOW_MS)
    told += [Anchored(RUN, 1, 1, digest(99), NOW_MS), tell(anchor, 2)]
    assert everything(path) == told
    with pytest.raises(RunRewound):
        tell(anchor, 1)


def test_giving_up_said_again_changes_nothing(path: Path, anchor: FileAnchor) -> None:
    """What was interrupted can be said again, by whomever: there is one line of it."""
    tell(anchor, 5)
    forget(anchor)
    before = path.read_bytes()
    forget(open_anchor(path), at_ms=NOW_MS + 1)
    assert path.read_bytes() == before


def test_an_operators_clock_does_not_keep_a_run_from_beginning(anchor: FileAnchor) -> None:
    """The time at which a run was given up is no record's, so the first record of its next life may be before it."""
    tell(anchor, 5)
    forget(anchor, at_ms=NOW_MS + 10**7)
    tell(anchor, 1)
    assert anchor.last(RUN, 1) == head(1)


def test_the_generations_that_are_remembered(path: Path, anchor: FileAnchor) -> None:
    """Those of just this run of which a last head is known, whatever their numbers, also by a process just begun."""
    assert anchor.generations(RUN) == ()
    assert not path.exists()
    for gen in (7, 1, 20_261_130, 3):
        tell(anchor, 2, gen=gen)
    tell(anchor, 2, run="order/4", gen=5)
    forget(anchor, gen=3)
    forget(anchor, gen=1)
    tell(anchor, 1)
    assert open_anchor(path).generations(RUN) == (1, 7, 20_261_130)
    assert anchor.generations("order/4") == (5,)
    assert anchor.generations("order") == ()


def test_generations_are_not_read_from_a_file_that_was_changed(path: Path, anchor: FileAnchor) -> None:
    """A5: A line that was removed anywhere shows also when generations are asked for."""
    for seq in range(1, 5):
        tell(anchor, seq)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(CorruptState):
        anchor.generations(RUN)


def test_only_giving_up_has_record_0(path: Path, anchor: FileAnchor) -> None:
    """Record 0 is never a head, and giving up has a hash of zeros: anything else is refused before anything is written."""
    for seq, hash_ in ((0, digest(1)), (-1, FIRST_PREV)):
        with pytest.raises(ConfigError, match=r"hash=|seq="):
            anchor.accept(RUN, 1, seq, hash_, NOW_MS)
    with pytest.raises(ConfigError, match="seq=0"):
        anchor.remember(RUN, 1, 0, FIRST_PREV, NOW_MS)
    assert not path.exists()


def test_why_a_run_was_set_back_stands_in_the_file(path: Path, anchor: FileAnchor) -> None:
    """An operator's reason is kept with what they accepted, cut where it is too long for a line."""
    tell(anchor, 5)
    anchor.accept(RUN, 1, 3, digest(33), NOW_MS, "looked at the bank " * 100)
    known = anchor.last(RUN, 1)
    assert known is not None
    assert (known.seq, known.back, known.why) == (3, True, ("looked at the bank " * 100)[:300])
    assert everything(path) == [head(5), known]


# ---------------------------------------------------------------- what a crash leaves


@pytest.mark.parametrize("kept", [0, 1, 60, 200])
@pytest.mark.parametrize("zeros", [0, 50])
def test_a_torn_last_line_is_passed_over(path: Path, anchor: FileAnchor, kept: int, zeros: int) -> None:
    """A5: A writer that died in the middle of a line, or a power cut there, costs that line alone."""
    tell(anchor, 1)
    whole = path.stat().st_size
    tell(anchor, 2)
    os.truncate(path, whole + kept)
    with path.open("ab") as file:
        file.write(b"\0" * zeros)
    again = open_anchor(path)
    assert again.last(RUN, 1) == head(1)
    tell(again, 2)
    tell(again, 3)
    assert open_anchor(path).last(RUN, 1) == head(3)
    assert everything(path) == [head(1), head(2), head(3)]


def test_a_line_that_lacks_only_its_end_is_one(path: Path, anchor: FileAnchor) -> None:
    """Where nothing but the line feed was torn off, all that the line says is there, and the next one goes below it."""
    tell(anchor, 1)
    tell(anchor, 2)
    os.truncate(path, path.stat().st_size - 1)
    assert open_anchor(path).last(RUN, 1) == head(2)
    tell(anchor, 3)
    assert everything(path) == [head(1), head(2), head(3)]


def test_the_end_of_a_torn_line_may_be_torn_as_well(path: Path, anchor: FileAnchor) -> None:
    """A second death right after the first piece was ended is passed over, too."""
    tell(anchor, 1)
    for piece in (b'{"at":1', b"\n", b'{"at":17', b"\n\n"):
        with path.open("ab") as file:
            file.write(piece)
        assert open_anchor(path).last(RUN, 1) == head(1)
    tell(anchor, 2)
    assert everything(path) == [head(1), head(2)]


def test_a_short_write_is_told_and_made_good(path: Path, anchor: FileAnchor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes half a line is Unavailable, not remembered; the next line goes below the piece."""
    tell(anchor, 1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:50]))
    with pytest.raises(Unavailable, match="only 50 of"):
        tell(anchor, 2)
    monkeypatch.undo()
    assert anchor.last(RUN, 1) == head(1)
    tell(anchor, 2)
    assert everything(path) == [head(1), head(2)]


def test_nothing_is_told_before_it_is_flushed(anchor: FileAnchor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durable: a disk that cannot flush is an error, also where the line stands already, as another has left it."""

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "flush", broken)
    for _ in range(2):
        with pytest.raises(Unavailable, match="Input/output error"):
            tell(anchor, 1)
    monkeypatch.undo()
    tell(anchor, 1)


def test_the_name_of_a_new_file_is_flushed(path: Path, anchor: FileAnchor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durable: the directory is flushed once by each who writes, since the maker of the file may have died before."""
    flushed: list[object] = []
    monkeypatch.setattr(module, "flush_directory", flushed.append)
    for each in (anchor, anchor, open_anchor(path)):
        tell(each, 1)
    assert flushed == [path.parent, path.parent]


# ---------------------------------------------------------------- other hands


Change = Callable[[list[bytes]], list[bytes]]
EDITS: dict[str, Change] = {
    "removed": lambda lines: lines[:2] + lines[3:],
    "first removed": lambda lines: lines[1:],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "repeated": lambda lines: [*lines[:3], lines[1], *lines[3:]],
    "edited": lambda lines: [*lines[:2], lines[2].replace(b'"seq":3', b'"seq":9'), *lines[3:]],
    "blotted": lambda lines: [*lines[:2], b"x" * 80 + b"\n", *lines[3:]],
    "last edited": lambda lines: [*lines[:-1], lines[-1].replace(b'"seq":5', b'"seq":9')],
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_the_file_shows(path: Path, anchor: FileAnchor, name: str) -> None:
    """A5: Whatever was done to a line that is read over, it is CorruptState for who asks and for who wants to remember."""
    for seq in range(1, 6):
        tell(anchor, seq)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(EDITS[name](lines)))
    before = path.read_bytes()
    again = open_anchor(path)
    with pytest.raises(CorruptState, match=path.name):
        again.last("order/new", 1)
    with pytest.raises(CorruptState, match=path.name):
        tell(again, 1, run="order/new")
    assert path.read_bytes() == before
    with pytest.raises(CorruptState):
        everything(path)


def test_a_file_that_vanished_shows(path: Path, anchor: FileAnchor) -> None:
    """Who has seen the file does not begin another one in silence."""
    tell(anchor, 1)
    path.unlink()
    with pytest.raises(CorruptState, match="is gone"):
        anchor.last(RUN, 1)
    with pytest.raises(CorruptState, match="is gone"):
        tell(anchor, 2)
    assert not path.exists()


def test_a_file_without_lines_ends_the_reading(path: Path, anchor: FileAnchor) -> None:
    """Something that is no anchor at all, of any size, is refused without being taken into memory."""
    path.write_bytes(b"x" * (5 * module.BLOCK))
    path.chmod(0o600)
    with pytest.raises(CorruptState, match="longer than any line"):
        anchor.last(RUN, 1)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    """What anybody could change is no anchor; the mode is named."""
    path.touch()
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}"):
        open_anchor(path)


def test_a_file_of_somebody_else_is_read_and_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose owner is another user, who could change what is written, is no place to write; an auditor may read it."""
    tell(open_anchor(path), 1)
    if os.geteuid() == 0:
        os.chown(path, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    anchor = open_anchor(path)
    assert anchor.last(RUN, 1) == head(1)
    with pytest.raises(ConfigError, match="of user"):
        tell(anchor, 2)


def test_a_new_file_is_private(path: Path, anchor: FileAnchor) -> None:
    """The file is its owner's alone, whatever the process's mask is."""
    old = os.umask(0)
    try:
        tell(anchor, 1)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


def test_only_a_file_will_do(tmp_path: Path) -> None:
    """A directory, a pipe, a link and a place that does not exist are refused and named, and hang nobody."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "target").touch(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("directory", "pipe", "link"):
        with pytest.raises(ConfigError, match=name):
            open_anchor(tmp_path / name)
    with pytest.raises(ConfigError, match="missing"):
        tell(open_anchor(tmp_path / "missing" / "file"), 1)


def test_wrong_values_are_named(path: Path, anchor: FileAnchor) -> None:
    """Nothing is written for a head that cannot be one, or by an anchor that cannot bound times."""
    with pytest.raises(ConfigError, match="seq=0"):
        anchor.remember(RUN, 1, 0, digest(0), NOW_MS)
    with pytest.raises(ConfigError, match="run="):
        anchor.remember("x" * 2000, 1, 1, digest(1), NOW_MS)
    with pytest.raises(ConfigError, match="skew_s"):
        open_anchor(path, skew_s=float("nan"))
    assert not path.exists()


# ---------------------------------------------------------------- many at once


def test_a_lock_that_is_not_given_back_has_an_end(path: Path, anchor: FileAnchor) -> None:
    """Who holds the file's lock for ever stops nobody for longer than the bound, and nothing is written behind their back."""
    tell(anchor, 1)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable):
            tell(open_anchor(path, timeout_s=0.05), 2)
        assert anchor.last(RUN, 1) == head(1)
    tell(anchor, 2)
    assert everything(path) == [head(1), head(2)]


def test_a_file_put_in_its_place_is_the_one_that_is_written(
    path: Path, anchor: FileAnchor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that waited for the lock of a file which was replaced meanwhile writes to the one of that name."""
    tell(anchor, 1)
    moved, fresh = path.with_name("moved"), path.with_name("fresh")
    tell(open_anchor(fresh), 1)
    opened = threading.Event()
    lock = FileAnchor._lock

    def locking(own: FileAnchor, fd: int, until: float) -> None:
        opened.set()
        lock(own, fd, until)

    monkeypatch.setattr(FileAnchor, "_lock", locking)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=tell, args=(anchor, 2), name="waiting", daemon=True)
        waiting.start()
        assert opened.wait(30)
        os.link(path, moved)
        fresh.replace(path)
    waiting.join(30)
    assert everything(moved) == [head(1)]
    assert everything(path) == [head(1), head(2)]


def test_threads_append_whole_lines(path: Path) -> None:
    """Runs of one process in many threads share one file; every line is there, in one chain."""
    anchor = FileAnchor(path, timeout_s=50)  # a busy disk flushes slowly, and they wait for one another

    def work(number: int) -> None:
        for seq in range(1, 11):
            tell(anchor, seq, run=f"order/{number}")

    threads = [threading.Thread(target=work, args=(number,), name=f"run-{number}", daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    told = everything(path)
    assert len(told) == 60
    assert {run: anchor.last(run, 1) for run in {each.run for each in told}} == {
        f"order/{number}": head(10, run=f"order/{number}") for number in range(6)
    }
