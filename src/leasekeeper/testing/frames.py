"""Read the frame boundaries of HTTP/2 in passing bytes, without changing or delaying them.

gRPC sends each message in DATA frames, and those carry the bytes of keys and values as they are
(only headers are compressed). So a proxy can tell that "the request with this key" has gone
through and that "its reply" has come, on a connection in plain text. Rules from RFC 9113, sections
3.4 and 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
KEPT_PAYLOAD_BYTES = 256 * 1024

DATA, HEADERS, RST_STREAM = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose last byte has passed. ``payload`` is kept for DATA only, its first 256 KiB.

    ``start`` is where it began in the bytes just fed: 0 when it began in earlier ones.
    """

    kind: int
    stream: int
    payload: bytes
    start: int


class FrameReader:
    """Follow one direction of one connection; ``is_opaque`` once it proves not to be HTTP/2."""

    def __init__(self, *, expects_preface: bool) -> None:
        self._preface = PREFACE if expects_preface else b""
        self._header = bytearray()
        self._payload = bytearray()
        self._left = 0
        self.is_opaque = False

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that end within ``data``, in order."""
        frames: list[Frame] = []
        position = self._skip_preface(data)
        start = position
        while position < len(data) and not self.is_opaque:
            if len(self._header) < HEADER_BYTES:
                position = self._read_header(data, position)
            else:
                position = self._read_payload(data, position)
            if len(self._header) == HEADER_BYTES and self._left == 0:
                frames.append(self._finish(start))
                start = position
        return frames

    def _skip_preface(self, data: bytes) -> int:
        seen = min(len(self._preface), len(data))
        if data[:seen] != self._preface[:seen]:
            self.is_opaque = True
        self._preface = self._preface[seen:]
        return seen

    def _read_header(self, data: bytes, position: int) -> int:
        end = min(len(data), position + HEADER_BYTES - len(self._header))
        self._header += data[position:end]
        if len(self._header) == HEADER_BYTES:
            self._left = int.from_bytes(self._header[:3], "big")
        return end

    def _read_payload(self, data: bytes, position: int) -> int:
        end = min(len(data), position + self._left)
        if self._header[3] == DATA and len(self._payload) < KEPT_PAYLOAD_BYTES:
            self._payload += data[position:end]
        self._left -= end - position
        return end

    def _finish(self, start: int) -> Frame:
        stream = int.from_bytes(self._header[5:9], "big") & 0x7FFFFFFF
        frame = Frame(self._header[3], stream, bytes(self._payload), start)
        self._header.clear()
        self._payload.clear()
        return frame
