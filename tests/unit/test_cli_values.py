"""Values on the command line: what is taken, and what is refused in words."""

from __future__ import annotations

import click
import pytest

from leasekeeper.cli.values import SECONDS, TTL
from leasekeeper.durations import duration_s
from leasekeeper.errors import ConfigError
from leasekeeper.wire.environment import key_file, read_environment

TTL_OPTION = click.Option(["-t", "--ttl"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("5", 5.0), ("1.5", 1.5), (".5", 0.5), ("500ms", 0.5), ("3s", 3.0)),
        *(("2m", 120.0), ("1h", 3600.0), ("2d", 172_800.0)),
    ],
)
def test_durations_have_units(text: str, value: float) -> None:
    """A number is seconds; ms, s, m, h and d are units, as in the library."""
    assert SECONDS.convert(text, TTL_OPTION, None) == duration_s("ttl", text) == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1e3", "5 s", "5w", "1_0", "٣", "9" * 13, "0x1", "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Anything else is a ConfigError that names the option as it is typed, and says what would be right."""
    with pytest.raises(ConfigError, match=r"^--ttl=.*expected seconds.*500ms or 24h"):
        SECONDS.convert(text, TTL_OPTION, None)


@pytest.mark.parametrize(
    ("text", "why"), [("300000h", "from 0 to 1000000000 seconds"), ("2d", "seconds from 1 to 86400")]
)
def test_a_duration_has_bounds(text: str, why: str) -> None:
    """What nobody can wait for, and what is too long for this option, is said with the option and what was typed."""
    with pytest.raises(ConfigError, match=f"^--ttl='{text}': expected {why}"):
        TTL.convert(text, TTL_OPTION, None)


def test_the_claims_key_is_not_taken_for_a_private_key() -> None:
    """Under `leasekeeper run` LEASEKEEPER_KEY is the claim's key in etcd: a keeper made there must not read it as a file."""
    claim = {"LEASEKEEPER_KEY": "leasekeeper/default/lease/n/1", "LEASEKEEPER_TOKEN": "7"}
    assert key_file(claim) is None
    assert read_environment(claim) == {}
    assert key_file({**claim, "LEASEKEEPER_KEY_FILE": "/k.pem"}) == "/k.pem"


def test_a_private_key_is_still_taken_from_the_usual_variable() -> None:
    """Elsewhere LEASEKEEPER_KEY names the private key's file, also below a folder of that name."""
    assert key_file({"LEASEKEEPER_KEY": "/etc/k.pem"}) == "/etc/k.pem"
    assert key_file({"LEASEKEEPER_KEY": "leasekeeper/k.pem"}) == "leasekeeper/k.pem"
    assert key_file({"LEASEKEEPER_KEY": "/etc/k.pem", "LEASEKEEPER_TOKEN": "7"}) == "/etc/k.pem"
    assert key_file({}) is None
