"""Keys that sign what a resource must be able to believe, and the ring of keys that it believes.

============================  =====================  ====================  ==============================================
key                           signs                  verifies              choose it when
============================  =====================  ====================  ==============================================
`HmacKey`                     HMAC-SHA256            the same key          whoever verifies may also sign
`Ed25519Key`                  Ed25519                its `public` key      it may not, or the proof must convince others
============================  =====================  ====================  ==============================================

Each key has an id, which is written into what it signs, so keys can be exchanged one by one: let every resource know the new key,
then sign with it, then forget the old one. The algorithm belongs to the key and is never read from what was signed.

Ed25519 needs the package cryptography: ``pip install 'leasekeeper[signing]'``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from leasekeeper.errors import AuthError, ConfigError, Misuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric import ed25519

__all__ = ["Ed25519Key", "Ed25519PublicKey", "HmacKey", "Keyring", "SigningKey", "VerifyingKey"]

SECRET_MIN_BYTES = 16
SECRET_MAX_BYTES = 1024
ED25519_BYTES = 32
KEYS_MAX = 32
KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SigningKey(Protocol):
    """What signs. One of your own (a key in a hardware module, say) needs just this."""

    @property
    def key_id(self) -> str:
        """1 to 64 of ``A-Z a-z 0-9 _ -``."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The signature of these bytes, at most 64 bytes long."""
        ...


class VerifyingKey(Protocol):
    """What tells whether a signature is right."""

    @property
    def key_id(self) -> str:
        """The id of the key that signs."""
        ...

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether the key of this id signed just these bytes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HmacKey:
    """One secret that signs and verifies, by HMAC-SHA256. Whoever can verify with it can also sign.

    Args:
        key_id: names the secret; 1 to 64 of ``A-Z a-z 0-9 _ -``.
        secret: 16 to 1,024 random bytes, as from ``secrets.token_bytes(32)``; never shown or logged.

    Raises:
        ConfigError: one of them cannot be right.
    """

    key_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_key_id(self.key_id)
        _check_bytes("secret", self.secret, SECRET_MIN_BYTES, SECRET_MAX_BYTES)

    def sign(self, message: bytes) -> bytes:
        """32 bytes."""
        return hmac.digest(self.secret, message, hashlib.sha256)

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether this secret signed it; takes as long for a wrong signature as for the right one."""
        return hmac.compare_digest(self.sign(message), signature)


class Ed25519Key:
    """A private key that signs by Ed25519; its `public` key verifies.

    Args:
        key_id: names the pair; 1 to 64 of ``A-Z a-z 0-9 _ -``.
        private: the 32 raw bytes, random ones for a new key: ``secrets.token_bytes(32)``; never shown or logged.

    Raises:
        ConfigError: one of them cannot be right.
        Misuse: the package cryptography is not installed.
    """

    __slots__ = ("_key", "key_id")

    def __init__(self, key_id: str, private: bytes) -> None:
        self.key_id = check_key_id(key_id)
        _check_bytes("private", private, ED25519_BYTES, ED25519_BYTES)
        self._key: ed25519.Ed25519PrivateKey = _algorithm().Ed25519PrivateKey.from_private_bytes(private)

    @classmethod
    def from_pem(cls, key_id: str, pem: bytes, *, password: bytes | None = None) -> Ed25519Key:
        """The private key in a PEM file, as ``openssl genpkey -algorithm ed25519`` writes it."""
        key = _from_pem(_algorithm().Ed25519PrivateKey, lambda load: load.load_pem_private_key(pem, password))
        return cls(key_id, key.private_bytes_raw())

    @property
    def public(self) -> Ed25519PublicKey:
        """The key that verifies, under the same id."""
        return Ed25519PublicKey(self.key_id, self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key_id!r}>"


class Ed25519PublicKey:
    """The public half of an `Ed25519Key`: verifies and cannot sign.

    Args:
        key_id: the id of the pair.
        raw: the 32 raw bytes.

    Raises:
        ConfigError: one of them cannot be right.
        Misuse: the package cryptography is not installed.
    """

    __slots__ = ("_invalid", "_key", "key_id", "raw")

    def __init__(self, key_id: str, raw: bytes) -> None:
        self.key_id = check_key_id(key_id)
        _check_bytes("raw", raw, ED25519_BYTES, ED25519_BYTES)
        self.raw = raw
        self._key: ed25519.Ed25519PublicKey = _algorithm().Ed25519PublicKey.from_public_bytes(raw)
        from cryptography.exceptions import InvalidSignature

        self._invalid = InvalidSignature

    @classmethod
    def from_pem(cls, key_id: str, pem: bytes) -> Ed25519PublicKey:
        """The public key in a PEM file, as ``openssl pkey -pubout`` writes it."""
        key = _from_pem(_algorithm().Ed25519PublicKey, lambda load: load.load_pem_public_key(pem))
        return cls(key_id, key.public_bytes_raw())

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether the private key of this pair signed it."""
        try:
            self._key.verify(signature, message)
        except self._invalid:
            return False
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key_id!r}>"


class Keyring:
    """The keys that a resource believes, each by its id: at most 32.

    Raises:
        ConfigError: there is none, there are too many, or two have one id.
    """

    __slots__ = ("_keys",)

    def __init__(self, *keys: VerifyingKey) -> None:
        if not 1 <= len(keys) <= KEYS_MAX:
            raise ConfigError(field="keys", value=len(keys), expected=f"1 to {KEYS_MAX} keys")
        self._keys = {check_key_id(key.key_id): key for key in keys}
        if len(self._keys) < len(keys):
            twice = sorted(key.key_id for key in keys)
            raise ConfigError(field="keys", value=", ".join(twice), expected="ids that differ")

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def verify(self, key_id: str, message: bytes, signature: bytes) -> None:
        """Return if the key of this id signed just this message.

        Raises:
            AuthError: it did not, or no such key is known.
        """
        key = self._keys.get(key_id)
        if key is None:
            known = ", ".join(self._keys)
            raise AuthError(f"signed with key {key_id!r}, which is not known here: {known}", operation="verify")
        if not key.verifies(message, signature):
            raise AuthError(f"the signature is not that of key {key_id!r}: forged or changed", operation="verify")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._keys)}>"


def check_key_id(key_id: object) -> str:
    """``key_id`` if it can be one, else ConfigError."""
    if not isinstance(key_id, str) or not KEY_ID.fullmatch(key_id):
        raise ConfigError(field="key_id", value=key_id, expected="1 to 64 of A-Z a-z 0-9 _ -")
    return key_id


def _check_bytes(name: str, value: object, least: int, most: int) -> None:
    """ConfigError for anything but bytes of this length; it shows the length alone, because the bytes are a secret."""
    if not isinstance(value, bytes) or not least <= len(value) <= most:
        shown = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        expected = f"{least} to {most} bytes" if most > least else f"{least} bytes"
        raise ConfigError(field=name, value=shown, expected=expected)


def _algorithm() -> Any:
    """The module of Ed25519, imported when it is first needed."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise Misuse("Ed25519 keys need the package cryptography: pip install 'leasekeeper[signing]'") from error
    return ed25519


def _from_pem(kind: Any, load: Callable[[Any], object]) -> Any:
    """The key that ``load`` finds, if it is of this kind; the error says nothing of what the text holds."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = load(serialization)
    except Exception:  # noqa: BLE001 - cryptography raises many kinds, of which some show the text
        key = None
    if not isinstance(key, kind):
        raise ConfigError(field="pem", value="something else", expected=f"PEM of an {kind.__name__}, and its password")
    return key
