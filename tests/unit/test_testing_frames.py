"""Reading HTTP/2 frame boundaries, and the trips that stand on them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.testing.frames import DATA, HEADERS, PREFACE, RST_STREAM, Frame, FrameReader
from leasekeeper.testing.trips import Tap, Trip

SETTINGS, WINDOW_UPDATE = 4, 8


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """Spell a frame as RFC 9113 section 4.1 does."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def request(stream: int, message: bytes) -> bytes:
    """A unary gRPC request: headers, then the message."""
    return frame(HEADERS, stream, b"\x83") + frame(DATA, stream, message)


def opened_tap() -> Tap:
    """A tap on a connection whose client has said hello."""
    tap = Tap()
    assert tap.on_client_bytes(PREFACE + frame(SETTINGS, 0), []) == (len(PREFACE) + 9, None)
    return tap


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.binary(max_size=40)), max_size=8),
    st.lists(st.integers(1, 30), max_size=40),
)
def test_frames_are_found_however_the_bytes_are_cut(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    """The same frames come out whether the bytes arrive at once or in any pieces."""
    data = PREFACE + b"".join(frame(*one) for one in frames)
    reader, found, position = FrameReader(expects_preface=True), list[Frame](), 0
    for size in [*cuts, len(data)]:
        found += reader.feed(data[position : position + size])
        position += size
    assert not reader.is_opaque
    assert [(one.kind, one.stream) for one in found] == [(kind, stream) for kind, stream, _ in frames]
    assert [one.payload for one in found if one.kind == DATA] == [p for kind, _, p in frames if kind == DATA]


def test_start_points_at_the_frame_within_the_bytes_just_fed() -> None:
    """A frame knows where it began, so that all before it can pass and it cannot."""
    reader = FrameReader(expects_preface=False)
    first, second = frame(SETTINGS, 0), frame(DATA, 1, b"abc")
    assert [one.start for one in reader.feed(first + second)] == [0, len(first)]
    assert reader.feed(second[:5]) == []
    assert [one.start for one in reader.feed(second[5:] + first)] == [0, len(second) - 5]


def test_anything_but_http2_is_opaque() -> None:
    """A TLS hello is no preface: nothing is read into it."""
    reader = FrameReader(expects_preface=True)
    assert reader.feed(b"\x16\x03\x01\x02\x00\x01") == []
    assert reader.is_opaque


def test_the_reply_to_the_matching_call_trips_and_no_other() -> None:
    """Replies to other calls and connection chatter pass; the awaited one fires before its first byte."""
    tap, trip = opened_tap(), Trip("reply", b"key-b", "reset")
    armed = [trip]
    sent = request(1, b"key-a") + request(3, b"key-b")
    assert tap.on_client_bytes(sent, armed) == (len(sent), None)
    assert armed == []
    chatter = frame(WINDOW_UPDATE, 3, b"\0\0\0\1") + frame(HEADERS, 1) + frame(DATA, 1, b"ok")
    assert tap.on_server_bytes(chatter) == (len(chatter), None)
    assert tap.on_server_bytes(frame(SETTINGS, 0) + frame(HEADERS, 3)) == (9, trip)


def test_a_refused_call_counts_as_answered() -> None:
    """A stream that the server resets is an answer too, so a trip never waits for ever on it."""
    tap, trip = opened_tap(), Trip("reply", None, "reset")
    tap.on_client_bytes(request(1, b"x"), [trip])
    assert tap.on_server_bytes(frame(RST_STREAM, 1, b"\0\0\0\7")) == (0, trip)


def test_the_matching_request_stops_before_its_message() -> None:
    """lose_next_request lets through what came before the message, and nothing of it."""
    tap, trip = opened_tap(), Trip("request", lambda message: message.endswith(b"2"), "reset")
    armed = [trip]
    first, head = request(1, b"1"), frame(HEADERS, 3, b"\x83")
    assert tap.on_client_bytes(first + head + frame(DATA, 3, b"2"), armed) == (len(first + head), trip)
    assert armed == []


def test_trips_are_taken_in_the_order_they_were_armed() -> None:
    """Two trips that want the same message strike one message each."""
    tap = opened_tap()
    armed = [Trip("request", b"k", "reset"), Trip("request", b"k", "reset")]
    first, second = armed
    assert tap.on_client_bytes(frame(DATA, 1, b"k"), armed)[1] is first
    assert tap.on_client_bytes(frame(DATA, 3, b"k"), armed)[1] is second


def test_a_match_never_strikes_what_cannot_be_read() -> None:
    """On an opaque connection a trip with a match stays armed; one without takes the next bytes."""
    tap, blind, seeing = Tap(), Trip("request", None, "reset"), Trip("request", b"key", "reset")
    armed = [seeing]
    assert tap.on_client_bytes(b"\x16\x03\x01 key", armed) == (7, None)
    assert tap.on_client_bytes(b"tls key", armed) == (7, None)
    armed.append(blind)
    assert tap.on_client_bytes(b"tls key", armed) == (0, blind)
    assert armed == [seeing]
