"""One request to the outside world and its answer, free of how they travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from leasekeeper.testing.outside.ledger import Entry, Lag, Ledger

__all__ = ["Answer", "Request", "Route", "Service", "refuse"]

SUBJECTS = ("order", "to", "user", "model")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. Names of headers are in lower case; ``body`` is the JSON object that came, {} for none."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Request:
        """From the parts of an HTTP request."""
        parts = urlsplit(target)
        path = tuple(unquote(part) for part in parts.path.split("/") if part)
        lower = {name.lower(): value for name, value in headers.items()}
        return cls(method, path, dict(parse_qsl(parts.query)), lower, body)

    @property
    def key(self) -> str:
        """Its idempotency key, "" for none."""
        return self.headers.get("idempotency-key", "")

    @property
    def token(self) -> str:
        """Its fencing token as it came, "" for none."""
        return self._fencing("token")

    @property
    def claim(self) -> str:
        """The claim that the token belongs to, "" when it was not told."""
        return self._fencing("claim")

    def _fencing(self, name: str) -> str:
        return self.headers.get(f"fencing-{name}") or self.headers.get(f"x-fencing-{name}") or ""


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` as JSON; with ``pieces``, a stream of server-sent events instead. ``repeated``: nothing happened, see `Entry`."""

    status: int
    body: Any = None
    pieces: tuple[Any, ...] = ()
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """Who serves which requests. A ``*`` in the path stands for any one part, which is then the subject."""

    method: str
    path: tuple[str, ...]
    effect: str
    serve: Callable[[Request, Ledger, Entry, Lag | None], Answer]

    def takes(self, request: Request) -> bool:
        """Whether it is for such requests."""
        return (
            request.method == self.method
            and len(request.path) == len(self.path)
            and all(wanted in ("*", part) for wanted, part in zip(self.path, request.path, strict=True))
        )

    def subject(self, request: Request) -> str:
        """What the request is about, as far as it says."""
        if "*" in self.path:
            return request.path[self.path.index("*")]
        given = [str(request.body.get(name) or request.query.get(name) or "") for name in SUBJECTS]
        return next((name for name in given if name), "")


@dataclass(frozen=True, slots=True)
class Service:
    """A name, and what it serves."""

    name: str
    routes: tuple[Route, ...]


def refuse(status: int, error: str, **details: Any) -> Answer:
    """An answer that says no, and why."""
    return Answer(status, {"error": error, **details})
