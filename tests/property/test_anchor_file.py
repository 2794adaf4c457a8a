"""The anchor that is a file, against a dictionary: whatever is told, torn and read, both know the same."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.protocol.receipt import FIRST_PREV
from leasekeeper.run_errors import RunRewound
from leasekeeper.runs.anchor import Anchored, FileAnchor, anchored_in, parse_line
from leasekeeper.runs.anchored import standing, write_line

NOW_S = 1_796_000_000.0

runs = st.sampled_from(["a/1", "a/11", "b/1", 'q"uote/ä', 'x","gen":1,"/{"at":1'])
numbers = st.integers(1, 5)
tellings = st.tuples(st.just("tell"), runs, st.integers(1, 2), numbers, st.sampled_from("ab"))
tearings = st.tuples(st.just("tear"), st.integers(1, 400))
forgettings = st.tuples(st.just("forget"), runs, st.integers(1, 2))
steps = st.lists(st.one_of(tellings, tellings, tearings, forgettings), max_size=25)


@given(steps)
def test_a_file_remembers_what_a_dictionary_would(steps: list[tuple[object, ...]]) -> None:
    """A5: The last head of each run is known, lower numbers and other hashes are refused, and torn pieces cost nothing.

    A21: what an operator gave up is known no longer.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "anchor")
        known: dict[tuple[str, int], Anchored] = {}
        told: list[Anchored] = []
        for step in steps:
            anchor = FileAnchor(path, now_s=lambda: NOW_S)
            match step:
                case ("tell", str(run), int(gen), int(seq), str(letter)):
                    head = Anchored(run, gen, seq, letter * 64, round(NOW_S * 1000))
                    before = known.get((run, gen))
                    late = before is not None and (seq, head.hash) != (before.seq, before.hash) and seq <= before.seq
                    try:
                        anchor.remember(run, gen, seq, head.hash, head.at_ms)
                    except RunRewound:
                        assert late
                    else:
                        assert not late
                        told += [] if head == before else [head]
                        known[run, gen] = head
                case ("forget", str(run), int(gen)):
                    anchor.accept(run, gen, 0, FIRST_PREV, round(NOW_S * 1000), "gone")
                    nothing = Anchored(run, gen, 0, FIRST_PREV, round(NOW_S * 1000), back=True, why="gone")
                    again = (run, gen) not in known and nothing in told
                    told += [] if again else [nothing]
                    known.pop((run, gen), None)
                case ("tear", int(length)):
                    line = write_line(Anchored("a/1", 1, 5, "c" * 64, 0), "d" * 64)
                    with path.open("ab") as file:
                        os.fchmod(file.fileno(), 0o600)
                        file.write(line[: min(length, len(line) - 1)])
        reader = FileAnchor(path)
        for run, gen in {("a/1", 1), ("a/1", 2), ("a/11", 1), *known}:
            assert reader.last(run, gen) == known.get((run, gen))
            assert reader.generations(run) == tuple(sorted(gen for name, gen in known if name == run))
            assert standing(told, run, gen)[-1:] == [each for each in [known.get((run, gen))] if each is not None]
        if path.exists():
            with path.open("rb") as lines:
                assert list(anchored_in(lines)) == told


@given(
    st.builds(
        Anchored,
        run=st.text(min_size=1, max_size=60),
        gen=st.integers(1, 2**63),
        seq=st.integers(1, 10_000),
        hash=st.text("0123456789abcdef", min_size=64, max_size=64),
        at_ms=st.integers(0, 253_402_300_799_999),
    ),
    st.text(max_size=80),
    st.text(max_size=80),
)
def test_a_line_says_what_it_was_given(head: Anchored, before: str, after: str) -> None:
    """Every head comes back from the text that a collector has put around its line."""
    assert parse_line(before.replace("\0", "") + write_line(head).decode() + after) == head
