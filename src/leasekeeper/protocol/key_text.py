"""Keys as text of one line, so that they can stand in a variable, in a file or in a record.

=====================================  =============================================  =======================================
text                                   what it is                                     who may see it
=====================================  =============================================  =======================================
``ed25519:ID:BASE64``                  an Ed25519 private key, 32 bytes               whoever signs
``ed25519-public:ID:BASE64``           its public key, 32 bytes                       everybody
``hmac:ID:BASE64``                     an HMAC secret, 16 to 1,024 bytes              whoever signs or verifies
=====================================  =============================================  =======================================

What is wrong with such a text is told without showing any of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import TypeVar

from leasekeeper.errors import ConfigError
from leasekeeper.signing import Ed25519Key, Ed25519PublicKey, HmacKey

__all__ = ["fingerprint", "is_key_text", "private_text", "public_text", "signing_key", "verifying_key"]

T = TypeVar("T")

ED25519 = "ed25519"
PUBLIC = "ed25519-public"
HMAC = "hmac"
TEXT_MAX = 4096
FINGERPRINT_LENGTH = 16

PRIVATE_EXPECTED = f"{ED25519}:ID:BASE64 or {HMAC}:ID:BASE64, as `leasekeeper runs keygen` writes it"
PUBLIC_EXPECTED = f"{PUBLIC}:ID:BASE64 or {HMAC}:ID:BASE64, as `leasekeeper runs keygen` writes it"


def fingerprint(raw: bytes) -> str:
    """The id of a public key that was given none: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(raw).hexdigest()[:FINGERPRINT_LENGTH]


def is_key_text(text: str) -> bool:
    """Whether it begins as a key does."""
    return text.startswith((f"{ED25519}:", f"{PUBLIC}:", f"{HMAC}:"))


def signing_key(text: str, field: str) -> Ed25519Key | HmacKey:
    """The key that signs; ConfigError, naming ``field``, for anything else."""
    kind, key_id, raw = _parts(text, field, PRIVATE_EXPECTED)
    if kind != PUBLIC:
        return _named(field, lambda: Ed25519Key(key_id, raw) if kind == ED25519 else HmacKey(key_id, raw))
    raise ConfigError(field=field, value="a public key", expected=PRIVATE_EXPECTED)


def verifying_key(text: str, field: str) -> Ed25519PublicKey | HmacKey:
    """The key that verifies; ConfigError, naming ``field``, for anything else, also for a private key: it must not be spread."""
    kind, key_id, raw = _parts(text, field, PUBLIC_EXPECTED)
    if kind != ED25519:
        return _named(field, lambda: Ed25519PublicKey(key_id, raw) if kind == PUBLIC else HmacKey(key_id, raw))
    raise ConfigError(field=field, value="a private key", expected=f"its public one: {PUBLIC_EXPECTED}")


def private_text(kind: str, key_id: str, raw: bytes) -> str:
    """The text of a key that signs. ``kind`` is ``ed25519`` or ``hmac``."""
    return f"{kind}:{key_id}:{base64.b64encode(raw).decode()}"


def public_text(key: Ed25519PublicKey) -> str:
    """The text of a public key."""
    return f"{PUBLIC}:{key.key_id}:{base64.b64encode(key.raw).decode()}"


def _named(field: str, make: Callable[[], T]) -> T:
    """The key; what is wrong with a part of its text is told of the text's own name, and an id that cannot be one is not shown.

    Who has mixed up the parts has the secret in its place.
    """
    try:
        return make()
    except ConfigError as error:
        told = "another ID" if error.field == "key_id" else f"{error.value} in base64"
        expected = f"{error.expected} as its ID" if error.field == "key_id" else f"{error.expected} in its last part"
        raise ConfigError(field=field, value=f"a key with {told}", expected=expected) from None


def _parts(text: str, field: str, expected: str) -> tuple[str, str, bytes]:
    kind, key_id, encoded = [*text.strip().split(":"), "", "", ""][:3]
    wrong = ConfigError(field=field, value="something else", expected=expected)
    if len(text) > TEXT_MAX or text.count(":") != 2 or kind not in (ED25519, PUBLIC, HMAC):
        raise wrong
    try:
        return kind, key_id, base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
