"""Grants on every value and every changed bit: what was not signed is never believed."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.errors import AuthError, ConfigError
from leasekeeper.fencing import REVISION_MAX, TOKEN_MAX
from leasekeeper.guards.grant import Grant, Issuer, Verifier, canonical, digest_of
from leasekeeper.signing import Ed25519Key, HmacKey, SigningKey, VerifyingKey

SECRET = b"a secret that nobody else knows."


def keys() -> list[tuple[SigningKey, VerifyingKey]]:
    """A pair of each kind that this Python can make."""
    secret = HmacKey("k1", SECRET)
    pairs: list[tuple[SigningKey, VerifyingKey]] = [(secret, secret)]
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return pairs
    private = Ed25519Key("k1", SECRET)
    return [*pairs, (private, private.public)]


each_key = pytest.mark.parametrize(("key", "verifying"), keys(), ids=lambda key: type(key).__name__)


@dataclass(frozen=True)
class Ticket:
    """A lease whose gate is open and whose clock stands still."""

    name: str
    token: int
    claim: str
    holder: str

    def check(self, need: float = 0.0) -> int:
        """The token."""
        return self.token

    def remaining(self) -> float:
        """Ten seconds."""
        return 10.0

    def deadlines(self) -> tuple[float, float]:
        """Five and ten seconds."""
        return 5.0, 10.0


names = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)
tokens = st.integers(1, TOKEN_MAX).filter(lambda token: token & REVISION_MAX)
tickets = st.builds(Ticket, names, tokens, st.text("0123456789abcdef", min_size=24, max_size=24), names)
values = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.floats(1 - 2**53, 2**53 - 1) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(names, values, max_size=3)


def issue(key: SigningKey, ticket: Ticket, effect: str, given: dict[str, Any]) -> Grant:
    """A grant on clocks that stand still."""
    return Issuer(key, clock=lambda: 0.0, wall=lambda: 1_790_000_000.0).grant(ticket, effect, given)


def verifier(key: VerifyingKey) -> Verifier:
    """A resource whose clock is the issuer's."""
    return Verifier(key, wall=lambda: 1_790_000_000.0)


@each_key
@given(ticket=tickets, effect=names, given_=arguments)
def test_a_grant_comes_back_as_it_was(
    key: SigningKey, verifying: VerifyingKey, ticket: Ticket, effect: str, given_: dict[str, Any]
) -> None:
    """Whatever the names and arguments are, the text is read as the grant that it was, and it can stand in a header."""
    grant = issue(key, ticket, effect, given_)
    there = verifier(verifying).accept(grant.text, name=ticket.name, effect=effect, arguments=given_)
    assert there == grant
    assert (there.check(), there.claim, there.holder) == (ticket.token, ticket.claim, ticket.holder)
    assert grant.text.isascii()
    assert grant.text.isprintable()
    assert " " not in grant.text


@each_key
@given(data=st.data())
def test_one_changed_bit_is_refused(key: SigningKey, verifying: VerifyingKey, data: st.DataObject) -> None:
    """ROW A26: a text with any one bit of any byte changed is refused, wherever that is: version, key, payload, signature."""
    text = issue(key, Ticket("certs", 7, "nonce", "replica-1"), "rotate", {"host": "a.example"}).text
    place = data.draw(st.integers(0, len(text) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = text[:place] + chr(ord(text[place]) ^ 1 << bit) + text[place + 1 :]
    with pytest.raises((AuthError, ConfigError)):
        verifier(verifying).read(changed)


@pytest.mark.parametrize("place", ["cut", "added", "swapped"])
@given(data=st.data())
def test_characters_cut_added_or_swapped_are_refused(place: str, data: st.DataObject) -> None:
    """ROW A26: no other text means the same grant or another one: not a shorter, a longer or a rearranged one."""
    key = HmacKey("k1", SECRET)
    text = issue(key, Ticket("certs", 7, "nonce", "replica-1"), "rotate", {"host": "a.example"}).text
    at = data.draw(st.integers(0, len(text) - 2))
    changed = {
        "cut": text[:at] + text[at + 1 :],
        "added": text[:at] + data.draw(st.sampled_from("A_=. \n")) + text[at:],
        "swapped": text[:at] + text[at + 1] + text[at] + text[at + 2 :],
    }[place]
    if changed != text:
        with pytest.raises((AuthError, ConfigError)):
            verifier(key).read(changed)


@given(ticket=tickets, changed=tickets)
def test_a_signature_is_for_one_grant(ticket: Ticket, changed: Ticket) -> None:
    """ROW A26: the signature of one grant under the payload of another is an AuthError."""
    key = HmacKey("k1", SECRET)
    one, other = (issue(key, owner, "rotate", {}).text for owner in (ticket, changed))
    mixed = f"{other.rpartition('.')[0]}.{one.rpartition('.')[2]}"
    if one == other:
        assert verifier(key).read(mixed).check() == ticket.token
    else:
        with pytest.raises(AuthError):
            verifier(key).read(mixed)


@given(value=values)
def test_canonical_json_is_json_and_canonical(value: object) -> None:
    """The canonical text reads back as the value, and reading it and writing it again changes no byte."""
    written = canonical(value)
    back = json.loads(written)
    assert same(back, value)
    assert canonical(back) == written


def same(back: object, value: object) -> bool:
    """Equality of JSON values; 1 and 1.0 are one, True and 1 are not."""
    if isinstance(value, dict):
        return isinstance(back, dict) and back.keys() == value.keys() and all(same(back[k], value[k]) for k in value)
    if isinstance(value, list):
        return isinstance(back, list) and len(back) == len(value) and all(map(same, back, value))
    if isinstance(value, bool) or value is None:
        return back is value
    if isinstance(value, (int, float)):
        return isinstance(back, (int, float)) and not isinstance(back, bool) and math.isclose(back, value, rel_tol=0)
    return back == value


@given(one=arguments, other=arguments)
def test_other_arguments_have_another_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two sets of arguments have one digest exactly when they are one JSON value."""
    assert (digest_of(one) == digest_of(other)) == (same(one, other) and same(other, one))


@given(ticket=tickets, token=tokens)
def test_a_changed_copy_is_not_live(ticket: Ticket, token: int) -> None:
    """ROW A26: no grant made by replacing terms of a true one can be checked, not even with the terms it had."""
    grant = issue(HmacKey("k1", SECRET), ticket, "rotate", {})
    with pytest.raises(Exception, match="by hand"):
        dataclasses.replace(grant, token=token).check()
