"""The alert that is one HTTP request: JSON, posted to an address of the user's.

The address is often a secret: it may carry a password or a key in any of its parts. So nothing that is logged or raised here
names more of it than the host.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

from leasekeeper._version import __version__
from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.runs.within import Within

if TYPE_CHECKING:
    from leasekeeper.runs.alert import Alert

__all__ = ["webhook"]

log = logging.getLogger("leasekeeper")

TIMEOUT_S = 5.0
REDIRECTS_MAX = 3
# Those that ask for the same request elsewhere; the others turn it into one that carries nothing.
SAME_REQUEST = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
PORTS = {"http": 80, "https": 443}
EXPECTED = "http://HOST… or https://HOST…, in ASCII without blanks"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*\Z")


@dataclass(frozen=True, slots=True, repr=False)
class _Address:
    """Where to post: the URL as it is asked for, without a password, and as it may be shown."""

    url: str
    shown: str
    headers: Mapping[str, str]


def webhook(
    url: str, *, timeout_s: float = TIMEOUT_S, headers: Mapping[str, str] | None = None
) -> Callable[[Alert], bool]:
    """A hook that posts each alert to ``url`` as a JSON object: its fields, and ``text``, one line for people.

    The hook returns whether the server took it (a status from 200 to 299). What went wrong is logged, not raised. It takes at
    most ``timeout_s`` seconds, whatever the server or the name server does, and is not tried again. Redirects are followed
    within the same scheme, host and port only, and only those that keep the request (307, 308).

    Args:
        url: ``http`` or ``https``; a user and password in it are sent as Basic authorization. No part but the host is logged.
        timeout_s: seconds for the whole of it.
        headers: sent along, such as ``Authorization``; never logged.

    Raises:
        ConfigError: a value is wrong.
    """
    address = _address(url)
    sent = {
        "Content-Type": "application/json",
        "User-Agent": f"leasekeeper/{__version__}",
        **address.headers,
        **_checked(headers or {}),
    }
    within = Within(timeout_s, f"webhook {address.shown}")

    def post(alert: Alert) -> bool:
        body = json.dumps({**alert.fields, "text": alert.line}).encode()
        try:
            within("post", lambda: _post(address.url, body, sent, timeout_s))
        except Exception as error:  # noqa: BLE001 - whatever it is, the run's own news are more important
            log.error("webhook %s did not take the alert about run %s: %s", address.shown, alert.run, _reason(error))
            return False
        return True

    return post


def _address(url: str) -> _Address:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(field="url", value="…", expected=EXPECTED) from None
    plain = url.isascii() and not re.search(r"[\x00-\x20\x7f]", url)
    if not (plain and parts.scheme in PORTS and host):
        raise ConfigError(field="url", value=f"{parts.scheme[:8]}:…", expected=EXPECTED)
    place = parts.netloc.rpartition("@")[2]
    headers = {}
    if "@" in parts.netloc:
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return _Address(urlunsplit(parts._replace(netloc=place, fragment="")), f"{parts.scheme}://{place}/…", headers)


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """ConfigError, which does not show the value, for a header that HTTP cannot carry."""
    for name, value in headers.items():
        if not _NAME.match(name):
            raise ConfigError(field="headers", value=name, expected="a name of letters, digits and hyphens")
        if not _VALUE.match(value):
            raise ConfigError(field=f"headers[{name!r}]", value="…", expected="one line of Latin-1 text")
    return headers


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows nothing by itself: urllib's own way reads bodies without a bound, and goes to any host."""

    def http_error_302(self, *_: Any) -> None:
        """Leave the answer to the caller, as an error."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Post, and follow redirects that stay where they are; returns when a server has taken it."""
    opener = urllib.request.build_opener(_Here)
    for _ in range(1 + REDIRECTS_MAX):
        request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")
        try:
            opener.open(request, timeout=timeout_s).close()
            return
        except HTTPError as answer:
            with answer:
                location = answer.headers.get("Location")
                there = urljoin(url, location or "")
                stays = bool(location) and _origin(urlsplit(there)) == _origin(urlsplit(url))
                if answer.code not in SAME_REQUEST or not stays:
                    raise
        url = there
    raise URLError("more redirects than it follows")


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)


def _reason(error: Exception) -> str:
    """Why it failed, without any text that may show the URL or a header."""
    match error:
        case HTTPError() if 300 <= error.code < 400:
            return f"it redirects elsewhere ({error.code}): give the address that it leads to"
        case HTTPError():
            return f"it answered {error.code}"
        case Unavailable():
            return error.detail
        case URLError() if isinstance(error.reason, str):
            return error.reason
        case URLError() if isinstance(error.reason, Exception):
            return _reason(error.reason)
        case http.client.HTTPException():
            return f"it does not speak HTTP ({type(error).__name__})"
        case OSError():
            return error.strerror or type(error).__name__
    return type(error).__name__
