"""The line of an anchor: what it says comes back, a change shows, and a piece is told from both."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.receipt import FIRST_PREV
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.anchored import (
    FIRST,
    LINE_MAX,
    WHY_MAX,
    Anchored,
    anchored_in,
    parse_line,
    read_line,
    standing,
    write_line,
)
from leasekeeper.schema_errors import SchemaTooNew

HEAD = Anchored("order/42", 1, 7, "ab" * 32, 1_796_000_000_123)
# An operator has accepted that nothing is left of the run.
NOTHING = replace(HEAD, seq=0, hash=FIRST_PREV, back=True)


def chain(*heads: Anchored) -> list[bytes]:
    """The lines of a file."""
    lines, prev = [], FIRST
    for head in heads:
        lines.append(write_line(head, prev))
        read = read_line(lines[-1])
        assert read is not None
        prev = read.sum
    return lines


def heads(count: int) -> list[Anchored]:
    """Some heads of one run, one after the other."""
    return [replace(HEAD, seq=number, hash=f"{number:064x}") for number in range(1, count + 1)]


def test_a_line_is_json_that_people_can_read() -> None:
    """A5: Members have the names of the record's own, and the line is one line of ASCII."""
    line = write_line(replace(HEAD, run="bestellung/größe 1\n"), FIRST)
    read = json.loads(line)
    assert line.isascii()
    assert b"\n" not in line
    assert {key: read[key] for key in ("at", "gen", "hash", "prev", "run", "seq", "v")} == {
        "at": HEAD.at_ms,
        "gen": 1,
        "hash": HEAD.hash,
        "prev": FIRST,
        "run": "bestellung/größe 1\n",
        "seq": 7,
        "v": 1,
    }
    assert len(read["sum"]) == 64


@pytest.mark.parametrize(
    "around",
    [
        "%s",
        "<109>1 2026-11-30T03:19:47.123Z host leasekeeper 12 anchor - leasekeeper anchor %s\n",
        "Nov 30 03:19:47 host leasekeeper[12]: leasekeeper anchor %s",
        '{"at": no, said the collector} %s {"sum": 1}',
    ],
)
def test_a_message_is_found_whatever_a_collector_puts_around_it(around: str) -> None:
    """A5: What syslog servers write before and after a message does not hide it."""
    text = around % write_line(HEAD).decode()
    assert parse_line(text) == HEAD
    assert parse_line(text.encode()) == HEAD


@pytest.mark.parametrize("line", ["", "anything", '{"at":1}', "{", "\0" * 300, write_line(HEAD)[:-1].decode()])
def test_what_is_no_line_of_ours_says_nothing(line: str) -> None:
    """Other programs' lines and pieces of ours are passed over."""
    assert parse_line(line) is None
    assert read_line(line.encode()) is None


def test_no_part_of_a_line_is_a_line() -> None:
    """A writer that died anywhere in a line left a piece: neither a line, nor one that was changed."""
    line = write_line(replace(HEAD, run='a","sum":"' + "0" * 64 + '"}'), FIRST)
    assert read_line(line) is not None
    for end in range(len(line)):
        assert read_line(line[:end]) is None
        assert read_line(line[:end] + b"\0" * (len(line) - end)) is None
        # The disk may have kept the end of a line and not its beginning.
        assert read_line(b"\0" * (end + 1) + line[end + 1 :]) is None


def test_every_changed_character_shows() -> None:
    """A5: A line that was edited anywhere no longer says what it said: it is CorruptState, or no line at all."""
    line = write_line(HEAD)
    for at in range(len(line)):
        changed = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        try:
            assert parse_line(changed) is None
        except CorruptState:
            pass


def test_an_edited_number_is_not_passed_over() -> None:
    """A5: The edit that somebody would make, another hash or number, is CorruptState and not silence."""
    line = write_line(HEAD)
    for old, new in ((b'"seq":7', b'"seq":6'), (b"abab", b"acab"), (b'"gen":1', b'"gen":2')):
        with pytest.raises(CorruptState):
            parse_line(line.replace(old, new, 1))


def test_a_line_of_another_format_is_not_guessed_at() -> None:
    """A line with a right sum that says something unknown is CorruptState; a newer one is SchemaTooNew."""
    for changed in (b'"v":2', b'"v":0', b'"v":true', b'"v":1,"v":[]'):
        body = write_line(HEAD)[: -len(',"sum":""}') - 64].replace(b'"v":1', changed)
        total = hashlib.sha256(b"leasekeeper anchor v1\n" + body).hexdigest().encode()
        with pytest.raises(SchemaTooNew if b"2" in changed else CorruptState, match=r"format|read"):
            parse_line(body + b',"sum":"' + total + b'"}')


@pytest.mark.parametrize(
    "wrong",
    [
        {"gen": 0},
        {"gen": True},
        {"seq": 0},
        {"seq": 1.0},
        {"seq": "1"},
        {"seq": 0, "hash": FIRST_PREV},
        {"seq": 0, "back": True, "hash": "ab" * 32},
        {"seq": 0, "hash": FIRST_PREV, "back": 1},
        {"seq": False, "hash": FIRST_PREV, "back": True},
        {"seq": -1, "hash": FIRST_PREV, "back": True},
        {"why": None},
        {"why": b"text"},
        {"at_ms": -1},
        {"at_ms": 10**15},
        {"hash": "AB" * 32},
        {"hash": "ab" * 32 + "\n"},
        {"hash": None},
        {"run": ""},
        {"run": None},
        {"run": "x" * LINE_MAX},
    ],
    ids=str,
)
def test_what_cannot_be_remembered_is_named(wrong: dict[str, object]) -> None:
    """A wrong value is refused before anything is written, with the name of the field."""
    with pytest.raises(ConfigError) as refused:
        write_line(replace(HEAD, **wrong))  # type: ignore[arg-type]
    assert refused.value.field in wrong


def sealed(body: bytes) -> bytes:
    """A line with a right sum, whatever it says."""
    total = hashlib.sha256(b"leasekeeper anchor v1\n" + body).hexdigest().encode()
    return body + b',"sum":"' + total + b'"}'


def test_a_line_with_record_0_is_read_only_as_it_is_written() -> None:
    """A21: "back to record 0" comes back from its line; without ``back``, or with another hash, such a line is CorruptState."""
    line = write_line(NOTHING)
    assert parse_line(line) == NOTHING
    body = line[: -len(',"sum":""}') - 64]
    assert parse_line(sealed(body)) == NOTHING
    for old, new in ((b',"back":true', b""), (b'"00', b'"10'), (b'"seq":0', b'"seq":-1'), (b'"gen":1', b'"gen":0')):
        with pytest.raises(CorruptState, match="cannot be read"):
            parse_line(sealed(body.replace(old, new, 1)))


def test_a_line_says_why() -> None:
    """Why something was given up for lost stands in the line as a member of its own, and in no line that has no reason."""
    why = 'the "restore" of Monday,\nticket 7 {"at":1,"prev":"' + "0" * 64 + '"}'
    for head in (replace(HEAD, back=True), NOTHING):
        line = write_line(replace(head, why=why), FIRST)
        assert json.loads(line)["why"] == why
        assert parse_line(line) == replace(head, why=why)
        assert b"why" not in write_line(head, FIRST)


@pytest.mark.parametrize("letter", ["x", "\n", "\u00e4", "\U0001f511"], ids=ascii)
@pytest.mark.parametrize("run", ["order/42", "\u00e4" * 100 + "/" + "\u00e4" * 90], ids=["short", "long"])
def test_a_reason_of_any_length_has_a_line(letter: str, run: str) -> None:
    """A reason is cut at its bound, and further where the line would be longer than any may be: the rest always stands."""
    head = replace(NOTHING, run=run, why=letter * 10_000)
    line = write_line(head, FIRST)
    assert len(line) <= LINE_MAX
    found = parse_line(line)
    assert found is not None
    assert replace(found, why="") == replace(head, why="")
    assert head.why.startswith(found.why)
    assert len(found.why) <= WHY_MAX
    more = len(json.dumps(letter)) - 2
    assert len(found.why) == WHY_MAX or len(line) + max(more, len(',"why":""') * (not found.why)) + more > LINE_MAX


@pytest.mark.parametrize("why", [b"7", b"null", b'["x"]'])
def test_a_reason_that_is_no_text_is_corrupt(why: bytes) -> None:
    """A line with a right sum whose reason is anything but text is CorruptState."""
    body = write_line(NOTHING)[: -len(',"sum":""}') - 64]
    with pytest.raises(CorruptState):
        parse_line(sealed(body + b',"why":' + why))


# ---------------------------------------------------------------- many lines


def test_a_file_is_read_in_order() -> None:
    """All heads come out, oldest first, past blank lines and pieces."""
    lines = chain(*heads(5))
    lines[2:2] = [b"", lines[3][:40], b"\0" * 100]
    assert list(anchored_in(lines)) == heads(5)


def test_a_log_without_a_chain_is_read_in_order() -> None:
    """What a syslog server has collected has gaps and repetitions, which are none of the anchor's business."""
    some = [heads(5)[index] for index in (0, 1, 1, 4, 2)]
    assert list(anchored_in(b"log: " + write_line(head) + b"\r\n" for head in some)) == some


def test_files_may_follow_one_another() -> None:
    """A chain may begin anew, as in the next file."""
    assert list(anchored_in([*chain(*heads(2)), *chain(*heads(3))])) == heads(2) + heads(3)


@pytest.mark.parametrize(
    ("change", "number", "kept"),
    [
        (lambda lines: lines[:2] + lines[3:], 3, 2),
        (lambda lines: lines[1:], 1, 0),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, 1),
        (lambda lines: [*lines[:3], lines[1], *lines[3:]], 4, 3),
        (lambda lines: [*lines[:2], lines[2].replace(b'"seq":3', b'"seq":9'), *lines[3:]], 3, 2),
        (lambda lines: [*lines[:2], lines[2][:-1], *lines[3:]], 4, 2),
    ],
    ids=["removed", "first removed", "swapped", "repeated", "edited", "made a piece"],
)
def test_the_first_bad_line_is_named(change: object, number: int, kept: int) -> None:
    """A5: Lines that were removed, moved, repeated, edited or cut in the middle are found, and everything before is told."""
    lines = change(chain(*heads(5)))  # type: ignore[operator]
    told: list[Anchored] = []
    with pytest.raises(CorruptState, match=f"line {number}:"):
        told.extend(anchored_in(lines))
    assert told == heads(5)[:kept]


# ---------------------------------------------------------------- what holds


def test_what_was_given_up_does_not_hold() -> None:
    """A21: Back to a record, what came later does not hold; back to record 0, nothing does, and what comes after it does."""
    back = replace(HEAD, seq=2, hash="cd" * 32, back=True)
    others = [replace(HEAD, gen=2), replace(HEAD, run="order/4")]
    told = [*heads(3), *others, back]
    assert standing(told, HEAD.run, 1) == [heads(1)[0], back]
    told.append(NOTHING)
    assert standing(told, HEAD.run, 1) == []
    assert standing(told, HEAD.run, 2) == others[:1]
    assert standing(told, "order/4", 1) == others[1:]
    assert standing([*told, *heads(2)], HEAD.run, 1) == heads(2)
    assert list(anchored_in(chain(*told))) == told
