"""What a grant says, and the text that carries it: written once, and read only after its signature was found right."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, fields
from typing import NamedTuple

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError
from leasekeeper.fencing import parse_token
from leasekeeper.protocol.keys import check_name

__all__ = ["MEMBERS", "MS_MAX", "TEXT_MAX", "Parts", "Terms", "signed_part", "split", "whole"]

# The longest name, holder and effect in the longest UTF-8 fit, and the whole fits into the 8 KiB that servers allow a header.
TEXT_MAX = 6 * 1024
SIGNATURE_MAX_BYTES = 64
MS_MAX = 2**53 - 1

VERSION = "grant1"
FORM = re.compile(r"grant1\.([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
OTHER_VERSION = re.compile(r"(grant[0-9]{1,4})\.")
CLAIM = re.compile(r"[!-~]{1,64}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Terms:
    """The members of a grant's payload; times in milliseconds since 1970, UTC.

    Raises:
        ConfigError: a member cannot be; ``field`` is "grant." and its name.
    """

    name: str
    token: int
    claim: str
    holder: str
    effect: str
    digest: str
    issued_ms: int
    until_ms: int

    def __post_init__(self) -> None:
        for member in ("name", "holder", "effect"):
            check_name(getattr(self, member), f"grant.{member}")
        if type(self.token) is not int:
            raise _wrong("token", self.token, "an integer")
        parse_token(self.token)
        _check_text("claim", self.claim, CLAIM, "1 to 64 printable ASCII characters")
        _check_text("digest", self.digest, DIGEST, "a SHA-256 in 64 lower-case hex digits")
        for member in ("issued_ms", "until_ms"):
            value = getattr(self, member)
            if type(value) is not int or not 0 <= value <= MS_MAX:
                raise _wrong(member, value, f"milliseconds since 1970, at most {MS_MAX}")

    def payload(self) -> bytes:
        """Canonical JSON. The token is text there: many readers round numbers above 2**53."""
        return canonical({member: getattr(self, member) for member in MEMBERS} | {"token": str(self.token)})

    @classmethod
    def of(cls, payload: bytes) -> Terms:
        """The terms of a payload whose signature is right; ConfigError for any that `payload` would not write."""
        try:
            raw = json.loads(payload)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict) or raw.keys() != set(MEMBERS):
            raise _wrong("payload", "something else", f"a JSON object of {', '.join(MEMBERS)}")
        if not isinstance(raw["token"], str):
            raise _wrong("token", raw["token"], "decimal text")
        terms = cls(**{**raw, "token": parse_token(raw["token"])})
        if terms.payload() != payload:
            raise _wrong("payload", "another spelling", "canonical JSON")
        return terms


MEMBERS = tuple(member.name for member in fields(Terms))


class Parts(NamedTuple):
    """A text taken apart, nothing of it believed yet."""

    signed: bytes
    key_id: str
    payload: str
    signature: bytes


def signed_part(key_id: str, terms: Terms) -> str:
    """What is signed: the text up to its last dot."""
    return f"{VERSION}.{key_id}.{encoded(terms.payload())}"


def whole(signed: str, signature: bytes) -> str:
    """The text of a grant."""
    if not 1 <= len(signature) <= SIGNATURE_MAX_BYTES:
        raise _wrong("signature", f"{len(signature)} bytes", f"1 to {SIGNATURE_MAX_BYTES} bytes")
    return f"{signed}.{encoded(signature)}"


def split(text: object) -> Parts:
    """The parts of a text; ConfigError, which never shows the text, for one that no grant can have."""
    if not isinstance(text, str) or len(text) > TEXT_MAX:
        shown = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ConfigError(field="grant", value=shown, expected=f"text of at most {TEXT_MAX} characters")
    if not text.startswith(f"{VERSION}."):
        other = OTHER_VERSION.match(text)
        raise _wrong("version", other[1] if other else "something else", f"{VERSION}, the only one that is known here")
    form = FORM.fullmatch(text)
    if form is None:
        raise ConfigError(
            field="grant", value="something else", expected=f"{VERSION}.KEY.PAYLOAD.SIGNATURE in base64url"
        )
    signed = text.rpartition(".")[0].encode()
    return Parts(signed, form[1], form[2], decoded("signature", form[3]))


def encoded(data: bytes) -> str:
    """Bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(member: str, text: str) -> bytes:
    """The bytes of such a text; ConfigError unless it is the one that `encoded` makes of them."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        data = b""
    if encoded(data) != text:
        raise _wrong(member, "another spelling", "base64url without padding or spare bits")
    return data


def _check_text(member: str, value: object, form: re.Pattern[str], expected: str) -> None:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise _wrong(member, value, expected)


def _wrong(member: str, value: object, expected: str) -> ConfigError:
    return ConfigError(field=f"grant.{member}", value=value, expected=expected)
