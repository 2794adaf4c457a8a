"""What a run may be asked for: each wrong value is refused before anything is sent, by an error that says what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper import ConfigError, Keeper, Misuse, effect
from leasekeeper.runs.options import options
from leasekeeper.signing import HmacKey

KEY = HmacKey("k", b"sesame" * 6)


async def awaited(alert: object) -> None:
    """A coroutine function where a plain one is needed."""


def asked(**given: Any) -> Any:
    """The options of a run."""
    return options("order", id="1", **{"signer": None, **given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("generation", value) for value in (0, -1, True, "2", 1.0)),
        *(("quota", value) for value in (0, True, "2", 2**60)),
        *(("restarts", value) for value in (-1, None, True, "10", 10_001)),
        *(("verify", value) for value in (None, True, "never")),
        *(("durability", value) for value in (None, "disk", "drained")),
        *(("adopt_unsigned", value) for value in (None, 1, "yes")),
        *(("anchors", value) for value in (None, 3, "file", ["file"], [object()])),
        *(("trust", value) for value in (None, 3, "key", ["key"], KEY, HmacKey)),
        *(("signer", value) for value in (3, "key", b"key", HmacKey)),
        *(("blobs", value) for value in (3, "directory", object())),
        *(("ask_first", value) for value in (3, True, "find", [], [print], effect(print))),
        *(("alert", value) for value in (3, "stderr", awaited)),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: object) -> None:
    """Every option: one error of ours that names it and says what it may be; no bare TypeError, and nothing passed over."""
    with pytest.raises((ConfigError, Misuse), match=rf"^{name}\b.*expected ") as refused:
        asked(**{name: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [("signer", b"sesame"), ("trust", ["sesame"]), ("trust", b"sesame")])
def test_a_secret_is_not_shown(name: str, value: object) -> None:
    """What was taken for a key may be the secret itself: the error tells its kind alone."""
    with pytest.raises(ConfigError, match=f"^{name}: expected") as refused:
        asked(**{name: value})
    assert "sesame" not in f"{refused.value} {refused.value.value}"


def test_what_can_be_is_taken() -> None:
    """Lists and tuples, keys that sign and verify, and None where it means the default."""
    found = asked(signer=KEY, trust=[KEY], generation=None, quota=None, blobs=None, alert=print, adopt_unsigned=True)
    assert (found.trust, found.adopt_unsigned, found.restarts) == ((KEY,), True, 10)


def test_a_word_that_is_no_option() -> None:
    """It is named."""
    with pytest.raises(TypeError, match="'inputs'"):
        Keeper().run("order", id="1", inputs=3)  # type: ignore[call-arg]
