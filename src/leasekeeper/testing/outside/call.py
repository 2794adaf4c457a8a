"""One request to the outside world, as a program of a user's would make it: JSON there, JSON back, a deadline."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

__all__ = ["Refused", "call"]

TIMEOUT_S = 10.0


class Refused(Exception):
    """The service answered, and said no: ``status`` and the JSON ``body`` that it gave."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        return f"{self.status}: {self.body.get('error', self.body) if isinstance(self.body, dict) else self.body}"


def call(
    url: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The JSON that came back.

    Raises:
        Refused: the answer was a status of 400 or more.
        OSError, http.client.HTTPException: there was no answer; whether anything happened is not known.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    try:
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        content = None if body is None else json.dumps(body)
        connection.request(method, target, content, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status >= 400:
        raise Refused(response.status, answer)
    return answer
