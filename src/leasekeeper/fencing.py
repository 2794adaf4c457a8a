"""The fencing token and the rule by which a resource refuses an older owner.

A token is one positive 64-bit integer, ``epoch * 2**44 + create_revision``. The revision part grows with every new owner
because etcd's revision grows with every write; the epoch part is raised by an operator after a restore from a backup, when
the revision has gone back. As text it is decimal, zero-padded to 19 digits where strings are compared. Above 2**53 some
languages round numbers: hand the text over.

The rule (`admits`) needs no clock and no network: G4 rests on it and on the resource alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasekeeper.errors import ConfigError

__all__ = [
    "EPOCH_MAX",
    "REVISION_MAX",
    "TOKEN_MAX",
    "Admitted",
    "admits",
    "format_token",
    "make_token",
    "parse_token",
    "split_token",
]

REVISION_BITS = 44
REVISION_MAX = (1 << REVISION_BITS) - 1
EPOCH_MAX = (1 << (63 - REVISION_BITS)) - 1
TOKEN_MAX = (1 << 63) - 1
TOKEN_DIGITS = 19


def make_token(epoch: int, revision: int) -> int:
    """The token of a claim created at ``revision`` under ``epoch``; ConfigError when either is out of range."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise ConfigError(field="epoch", value=epoch, expected=f"0 to {EPOCH_MAX}")
    if not 1 <= revision <= REVISION_MAX:
        raise ConfigError(field="create_revision", value=revision, expected=f"1 to {REVISION_MAX}")
    return (epoch << REVISION_BITS) | revision


def split_token(token: int) -> tuple[int, int]:
    """``(epoch, create_revision)`` of a token."""
    return token >> REVISION_BITS, token & REVISION_MAX


def format_token(token: int) -> str:
    """The token as 19 digits, so that text compares as numbers do."""
    return f"{parse_token(token):0{TOKEN_DIGITS}d}"


def parse_token(text: str | int) -> int:
    """A token from its text or number; ConfigError for anything that cannot be one."""
    expected = f"a whole number from 1 to {TOKEN_MAX}"
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ConfigError(field="token", value=text, expected=expected)
    if isinstance(text, str) and not (text.isascii() and text.isdigit() and len(text) <= TOKEN_DIGITS):
        raise ConfigError(field="token", value=text[:60], expected=expected)
    token = int(text)
    if not 1 <= token <= TOKEN_MAX or not token & REVISION_MAX:
        raise ConfigError(field="token", value=token, expected=expected)
    return token


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a resource remembers: the highest token, the claim (nonce) it belongs to, and the holder for people to read."""

    token: int
    claim: str
    holder: str = ""


def admits(highest: Admitted | None, token: int, claim: str) -> bool:
    """Whether a write with ``token`` of ``claim`` may go through after ``highest``: the fence rule.

    Accept iff the token is larger, or equal and of the same claim. Plain ``>=`` would be wrong: after a restore the same
    number can belong to somebody else.
    """
    if highest is None or token > highest.token:
        return True
    return token == highest.token and claim == highest.claim
