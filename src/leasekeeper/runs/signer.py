"""Where keys come from: the one that signs a run's records, and the ring that verifies them.

A program gives its key as an object, or the operator gives it by one of two variables:

``LEASEKEEPER_SIGNING_KEY``
    the key itself, as ``ed25519:ID:BASE64`` or ``hmac:ID:BASE64``.
``LEASEKEEPER_SIGNING_KEY_FILE``
    a file that holds the same, or the PEM of an Ed25519 private key, whose id is then the first 16 hex digits of the SHA-256 of
    its raw public key. The file must belong to this user or to root, and nobody else may be able to read or write it.

With neither, records are chained but not signed. A third variable is for the day on which the key is another one:

``LEASEKEEPER_TRUST_FILE``
    a file of the keys by which earlier lives may have signed, as `verifying_ring` reads it: their public halves, one a line.

No key is ever shown, neither by an error nor by a ``repr``.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.key_text import (
    fingerprint,
    is_key_text,
    private_text,
    public_text,
    signing_key,
    verifying_key,
)
from leasekeeper.signing import Ed25519Key, Ed25519PublicKey, HmacKey, Keyring, check_key_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasekeeper.signing import SigningKey, VerifyingKey

__all__ = [
    "FILE_VARIABLE",
    "TEXT_VARIABLE",
    "TRUST_VARIABLE",
    "new_key",
    "read_signing_key",
    "signer_from_env",
    "trust_from_env",
    "verifying_ring",
]

TEXT_VARIABLE = "LEASEKEEPER_SIGNING_KEY"
FILE_VARIABLE = "LEASEKEEPER_SIGNING_KEY_FILE"
TRUST_VARIABLE = "LEASEKEEPER_TRUST_FILE"
FILE_MAX_BYTES = 64 * 1024
NEW_BYTES = 32
OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
PEM = "-----BEGIN "
# A key gets its real id once its public half is known.
NO_ID_YET = "unnamed"


def signer_from_env(env: Mapping[str, str] | None = None) -> SigningKey | None:
    """The key that the environment gives; None when it gives none.

    Args:
        env: the variables; default: the process's own.

    Raises:
        ConfigError: both variables are set, or what one of them gives is no key or is not kept secret.
        Misuse: it is an Ed25519 key, and the package cryptography is not installed.
    """
    given = os.environ if env is None else env
    text, path = given.get(TEXT_VARIABLE, ""), given.get(FILE_VARIABLE, "")
    if text and path:
        raise ConfigError(
            field=TEXT_VARIABLE, value="set", expected=f"one of {TEXT_VARIABLE} and {FILE_VARIABLE}, not both"
        )
    if text:
        return signing_key(text, TEXT_VARIABLE)
    return read_signing_key(path, FILE_VARIABLE) if path else None


def trust_from_env(env: Mapping[str, str] | None = None) -> tuple[VerifyingKey, ...]:
    """The keys that the environment gives to believe earlier lives by; none when it gives none.

    Args:
        env: the variables; default: the process's own.

    Raises:
        ConfigError: what is given cannot be read as a file of public or HMAC keys, or an HMAC key in it is not kept secret.
        Misuse: one is an Ed25519 key, and the package cryptography is not installed.
    """
    path = (os.environ if env is None else env).get(TRUST_VARIABLE, "")
    if not path:
        return ()
    if _is_key(path):
        raise ConfigError(field=TRUST_VARIABLE, value="a key", expected="the path of a file with public keys in it")
    keys = _keys_of(Path(path), TRUST_VARIABLE)
    if not keys:
        raise ConfigError(field=TRUST_VARIABLE, value=path, expected="a file with a key in it")
    try:
        Keyring(*keys)  # not too many, and each by an id of its own
    except ConfigError as error:
        raise ConfigError(field=TRUST_VARIABLE, value=path, expected=f"{error.expected} in it") from None
    return tuple(keys)


def read_signing_key(path: str | os.PathLike[str], field: str = "signing key file") -> SigningKey:
    """The key in a file that is kept secret: the text of a key, or the PEM of an Ed25519 private key.

    Raises:
        ConfigError: it cannot be read, is no regular file, is not kept secret, or holds no key; ``field`` is what names the file.
        Misuse: it is an Ed25519 key, and the package cryptography is not installed.
    """
    if _is_key(os.fspath(path)):
        raise ConfigError(
            field=field, value="a key", expected=f"the path of a file; a key itself goes into {TEXT_VARIABLE}"
        )
    content, unsafe = _read(Path(path), field)
    if unsafe:
        raise ConfigError(field=field, value=os.fspath(path), expected=unsafe)
    if not content.startswith(PEM):
        return signing_key(content, f"{field}, {os.fspath(path)}")
    pem = content.encode()
    key_id = fingerprint(Ed25519Key.from_pem(NO_ID_YET, pem).public.raw)
    return Ed25519Key.from_pem(key_id, pem)


def verifying_ring(sources: Iterable[str | os.PathLike[str]]) -> Keyring:
    """The keys to believe, from texts of keys and from files of them.

    A file holds one text a line (empty lines and those that begin with ``#`` are passed over), or the PEM of one Ed25519 public
    key, whose id is then made as that of a private one is. A file with an HMAC secret must be kept as secret as a private key.

    Args:
        sources: each the text of a public or HMAC key, a PEM, or a path.

    Raises:
        ConfigError: one of them is none of these, or is a private key, or there is no key or two of one id.
        Misuse: one is an Ed25519 key, and the package cryptography is not installed.
    """
    return Keyring(*(key for number, source in enumerate(sources, 1) for key in _keys_of(source, f"key {number}")))


def new_key(kind: Literal["ed25519", "hmac"] = "ed25519", key_id: str | None = None) -> tuple[str, str]:
    """A new random key: its private text, and its public one, which is empty for HMAC, where who verifies needs the secret.

    Args:
        kind: ``ed25519`` or ``hmac``.
        key_id: names the key; default: made from the public key, or random for HMAC.

    Raises:
        ConfigError: one of them cannot be right.
        Misuse: it is an Ed25519 key, and the package cryptography is not installed.
    """
    raw = secrets.token_bytes(NEW_BYTES)
    if kind == "hmac":
        return private_text("hmac", check_key_id(key_id or secrets.token_hex(8)), raw), ""
    if kind != "ed25519":
        raise ConfigError(field="kind", value=kind, expected="ed25519 or hmac")
    public = Ed25519Key(NO_ID_YET, raw).public.raw
    named = Ed25519PublicKey(key_id or fingerprint(public), public)
    return private_text("ed25519", named.key_id, raw), public_text(named)


def _is_key(text: str) -> bool:
    """Whether it is a key rather than the path of one; such a path would be shown in errors."""
    return is_key_text(text.strip()) or text.strip().startswith(PEM)


def _keys_of(source: str | os.PathLike[str], field: str) -> list[VerifyingKey]:
    if isinstance(source, str) and _is_key(source):
        return _keys_in(source.strip(), field)
    content, unsafe = _read(Path(source), field)
    keys = _keys_in(content, f"{field}, {os.fspath(source)}")
    if unsafe and any(isinstance(key, HmacKey) for key in keys):
        raise ConfigError(field=field, value=os.fspath(source), expected=unsafe)
    return keys


def _keys_in(content: str, field: str) -> list[VerifyingKey]:
    if content.startswith(PEM):
        pem = content.encode()
        return [Ed25519PublicKey.from_pem(fingerprint(Ed25519PublicKey.from_pem(NO_ID_YET, pem).raw), pem)]
    lines = [line.strip() for line in content.splitlines()]
    return [verifying_key(line, field) for line in lines if line and not line.startswith("#")]


def _read(path: Path, field: str) -> tuple[str, str]:
    """The text of a file, and what would have to be done to keep it secret; empty when it is.

    All that is looked at belongs to the opened file: the path may lead to another one a moment later.
    """
    try:
        # Opening a pipe would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it has a NUL in it"
        raise ConfigError(field=field, value=os.fspath(path), expected=f"a file that can be read: {why}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(field=field, value=os.fspath(path), expected="a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(FILE_MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > FILE_MAX_BYTES:
        raise ConfigError(field=field, value=os.fspath(path), expected=f"a file of at most {FILE_MAX_BYTES} bytes")
    try:
        return content.decode().strip(), _unsafe(found, path)
    except UnicodeDecodeError:
        raise ConfigError(field=field, value=os.fspath(path), expected="the text of a key, or PEM") from None


def _unsafe(found: os.stat_result, path: Path) -> str:
    mode = stat.S_IMODE(found.st_mode)
    if mode & OTHERS:
        return f"that only its owner can read it; its mode is {mode:03o}: chmod 600 {path}"
    if found.st_uid not in (0, os.geteuid()):
        return f"that it belongs to this user or to root; it belongs to user {found.st_uid}: chown it, then chmod 600 {path}"
    return ""
