"""Settings from the environment: LEASEKEEPER_* first, then the ETCDCTL_* that operators have set already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from leasekeeper.protocol.keys import ROOT
from leasekeeper.timing import Timing
from leasekeeper.wire.channel import TLS, Channel

__all__ = ["Settings", "key_file", "read_environment", "settings"]


class Settings(TypedDict, total=False):
    """A keeper's arguments by their names."""

    endpoints: str | Sequence[str]
    namespace: str
    timing: Timing | None
    tls: TLS | None
    user: str | None
    password: str | None
    holder: str | None
    channel: Channel | None
    metadata: Sequence[tuple[str, str | bytes]]


def settings(env: Mapping[str, str], overrides: Settings) -> Settings:
    """Arguments for a keeper: ``overrides``, and for what they leave open the environment.

    A channel that is lent knows where it leads and how: endpoints and TLS files of the environment are then not for this keeper.
    """
    found = read_environment(env)
    if overrides.get("channel") is not None:
        found.pop("endpoints", None)
        found.pop("tls", None)
    return Settings(**{**found, **overrides})  # type: ignore[typeddict-item]


def read_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for a keeper.

    ``LEASEKEEPER_ENDPOINTS NAMESPACE HOLDER USER PASSWORD CACERT CERT KEY KEY_FILE``; for what they leave open
    ``ETCDCTL_ENDPOINTS USER PASSWORD CACERT CERT KEY``. ``USER`` may be ``name:password``, as for etcdctl. An empty
    variable counts as not set. ``KEY_FILE`` is another word for ``KEY`` that wins over it: a program under
    ``leasekeeper run`` finds the key of its claim in etcd in ``LEASEKEEPER_KEY``. ConfigError for a TLS file that cannot be
    used.
    """

    def get(name: str) -> str | None:
        return env.get(f"LEASEKEEPER_{name}") or env.get(f"ETCDCTL_{name}") or None

    settings: dict[str, Any] = {}
    if endpoints := get("ENDPOINTS"):
        settings["endpoints"] = endpoints
    for name in ("NAMESPACE", "HOLDER"):
        if value := env.get(f"LEASEKEEPER_{name}"):
            settings[name.lower()] = value
    settings.update(_login(env))
    files = {"ca": get("CACERT"), "cert": get("CERT"), "key": key_file(env) or env.get("ETCDCTL_KEY") or None}
    if any(files.values()):
        settings["tls"] = TLS(**files)
    return settings


def key_file(env: Mapping[str, str]) -> str | None:
    """The private key's file as LEASEKEEPER_* give it."""
    key = env.get("LEASEKEEPER_KEY", "")
    # What `leasekeeper run` tells its program: a key in etcd, together with the claim's token.
    is_claim = key.startswith(ROOT) and bool(env.get("LEASEKEEPER_TOKEN"))
    return env.get("LEASEKEEPER_KEY_FILE") or (None if is_claim else key) or None


def _login(env: Mapping[str, str]) -> dict[str, str]:
    """User and password. A password that came with one user, behind a colon, is nobody else's."""
    ours = credentials(env.get("LEASEKEEPER_USER"), env.get("LEASEKEEPER_PASSWORD"))
    theirs = credentials(env.get("ETCDCTL_USER"), env.get("ETCDCTL_PASSWORD"))
    if "user" in ours:
        theirs = credentials(None, env.get("ETCDCTL_PASSWORD"))
    return {**theirs, **ours}


def credentials(user: str | None, password: str | None) -> dict[str, str]:
    """User and password, where the user may carry the password behind a colon."""
    if user and not password and ":" in user:
        user, _, password = user.partition(":")
    found = {"user": user, "password": password}
    return {field: value for field, value in found.items() if value}
