"""A key comes later than the run: who signs does not go on where nothing is signed, unless somebody says so."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper import CorruptState, InDoubt, Keeper, SigningKeyMissing, effect
from leasekeeper.signing import HmacKey

KEY = HmacKey("k1", b"k" * 32)


def begin(keeper: Keeper) -> None:
    """A run without a key, that dies."""
    try:
        with keeper.run("order", id="1", signer=None):
            raise KeyError
    except KeyError:
        pass


def test_who_signs_does_not_go_on_where_nothing_is_signed(keeper: Keeper) -> None:
    """A20, A22: a chain without any signature may be one whose signatures were taken off: CorruptState, and nothing is added."""
    begin(keeper)
    with pytest.raises(CorruptState, match="adopt_unsigned"):
        keeper.run("order", id="1", signer=KEY).__enter__()
    with keeper.run("order", id="1", signer=KEY, adopt_unsigned=True) as run:
        run.do("a", lambda: 1)
    with pytest.raises(SigningKeyMissing):  # and never back
        keeper.run("order", id="1", signer=None).__enter__()


def test_a_key_is_as_old_as_the_callee_was_told(keeper: Keeper) -> None:
    """A18: a release that declares a longer key_ttl, or dedupes at all, does not make a key fresh that was sent before it."""
    calls: list[str] = []

    def breaks(step: Any) -> None:
        calls.append(step.idempotency_key)
        raise ConnectionError

    before = effect()(breaks)
    now = effect(dedupes=True, key_ttl="24h")(breaks)
    before.name = now.name = "breaks"
    with pytest.raises(ConnectionError), keeper.run("order", id="2", signer=None) as run:
        run.do("a", before)
    with pytest.raises(InDoubt), keeper.run("order", id="2", signer=None) as run:
        run.do("a", now)
    assert len(calls) == 1
