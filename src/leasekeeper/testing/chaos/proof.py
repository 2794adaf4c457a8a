"""A signed report, and the gate that asks for one: "this release went through a storm, lately, and kept its promises".

The signature is over the bytes of report.json as they lie on the disk, and lies beside it. It shows that whoever has the key
vouches for the report and that nobody changed it since; not that the storm was a hard one, which is for the report to say.
"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasekeeper._version import __version__
from leasekeeper.errors import AuthError, ConfigError
from leasekeeper.signing import Keyring

if TYPE_CHECKING:
    from leasekeeper.signing import SigningKey, VerifyingKey

__all__ = ["require_proof", "sign_report"]

REPORT_MAX_BYTES = 16 * 1024 * 1024
SIGNATURE_MAX_BYTES = 4096
# What clocks of two machines may be apart before a report counts as one from the future.
SKEW_S = 300.0


def sign_report(report: Path, key: SigningKey) -> Path:
    """Sign a report.json; returns the file with the signature, ``report.json.sig`` beside it."""
    signature = base64.b64encode(key.sign(_read(report, REPORT_MAX_BYTES))).decode()
    path = _beside(report)
    path.write_text(json.dumps({"format": 1, "key_id": key.key_id, "signature": signature}) + "\n", encoding="utf-8")
    return path


def require_proof(
    report: Path,
    *keys: VerifyingKey,
    max_age_s: float,
    seconds: float = 0.0,
    release: str = __version__,
    workload: str = "lease",
) -> dict[str, Any]:
    """The report, if one of the keys signed it, it is young enough, of this release, and every promise was kept.

    For the start of a program that shall not act without: call it before the first lease. It rests on this machine's wall
    clock, which the report's age is measured by, and on the keys.

    Args:
        report: report.json, with its signature beside it.
        keys: those that are believed.
        max_age_s: how long ago the storm may have ended.
        seconds: how long it must have lasted at least.
        release: of leasekeeper; the one that runs by default.
        workload: what it must have been a storm over: ``lease`` or ``runs``.

    Raises:
        AuthError: the signature is missing, forged, or of a key that is not among these.
        ConfigError: the report cannot be read, is too old, of another release, of too short a storm, or one of a broken promise;
            or over something else; ``field`` says which.
    """
    data = _read(report, REPORT_MAX_BYTES)
    Keyring(*keys).verify(*_signature(report, data))
    found = _report(data)
    age_s = time.time() - float(found["ended_at_s"])
    over = found.get("workload", "lease")  # there was no other when a report did not say
    for field, value, good, expected in (
        ("proof.verdict", found["verdict"], found["verdict"] == "kept", "kept"),
        ("proof.release", found["versions"]["leasekeeper"], found["versions"]["leasekeeper"] == release, release),
        ("proof.age_s", round(age_s), -SKEW_S <= age_s <= max_age_s, f"at most {max_age_s:g}"),
        ("proof.workload", over, over == workload, workload),
        ("proof.seconds", found["seconds"], found["seconds"] >= seconds, f"{seconds:g} or more"),
    ):
        if not good:
            raise ConfigError(field=field, value=value, expected=f"{expected}; run `leasekeeper chaos` again")
    return found


def _report(data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(data)
        known = found["format"] == 1
        complete = {"verdict", "versions", "seconds", "ended_at_s"} <= found.keys() and "leasekeeper" in found[
            "versions"
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        known = complete = False
        found = {}
    if not (known and complete):
        raise ConfigError(field="proof.report", value="something else", expected="a report.json of `leasekeeper chaos`")
    return found


def _signature(report: Path, data: bytes) -> tuple[str, bytes, bytes]:
    """The id of the key, what was signed, and the signature."""
    path = _beside(report)
    try:
        found = json.loads(_read(path, SIGNATURE_MAX_BYTES))
        return str(found["key_id"]), data, base64.b64decode(found["signature"], validate=True)
    except (ConfigError, ValueError, TypeError, KeyError):
        raise AuthError(f"{path}: there is no signature that can be read", operation="verify") from None


def _beside(report: Path) -> Path:
    return report.with_name(report.name + ".sig")


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ConfigError(
            field="proof", value=str(path), expected=f"a file that can be read ({error.strerror})"
        ) from None
    if len(data) > most:
        raise ConfigError(field="proof", value=str(path), expected=f"at most {most} bytes")
    return data
