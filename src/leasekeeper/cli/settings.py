"""What a command runs with: global options over the environment, and the keeper that follows from both.

An option given on the command line counts as if its variable had that value, so both have one meaning, written once in
`leasekeeper.wire.environment`. Nothing is read from files or asked for before a keeper is made.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from leasekeeper.cli.exits import DEBUG
from leasekeeper.durations import duration_s
from leasekeeper.errors import ConfigError

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper

__all__ = ["OPTIONS", "Format", "Settings", "words_about"]

Format = Literal["table", "json"]
FORMATS: tuple[Format, ...] = ("table", "json")

GRPC_VERBOSITY = "GRPC_VERBOSITY"

# How long a command that asks etcd something tries before it says that etcd is unavailable.
ASK_S = 10.0

# The connection's options and their variables, without LEASEKEEPER_.
OPTIONS = {
    "endpoints": "ENDPOINTS",
    "namespace": "NAMESPACE",
    "user": "USER",
    "cacert": "CACERT",
    "cert": "CERT",
    "key": "KEY_FILE",
}

# What the library expects in its own words, in those of the command line.
EXPECTED = {
    "key with it": "--key with it",
    "cert with it": "--cert with it",
    "https:// when tls is given": "https:// with --cacert, --cert or --key",
    "user and password together": "a user with it, by --user or LEASEKEEPER_USER",
}

# Where the value of a keeper's argument may come from: the option, then the variables in the order in which they count.
ORIGINS = {
    "endpoint": ("endpoints", "LEASEKEEPER_ENDPOINTS", "ETCDCTL_ENDPOINTS"),
    "endpoints": ("endpoints", "LEASEKEEPER_ENDPOINTS", "ETCDCTL_ENDPOINTS"),
    "namespace": ("namespace", "LEASEKEEPER_NAMESPACE"),
    "holder": ("", "LEASEKEEPER_HOLDER"),
    # A password without a user is a matter of the variable that has the password.
    "user": ("user", "LEASEKEEPER_USER", "ETCDCTL_USER", "LEASEKEEPER_PASSWORD", "ETCDCTL_PASSWORD"),
    "password": ("user", "LEASEKEEPER_PASSWORD", "ETCDCTL_PASSWORD", "LEASEKEEPER_USER", "ETCDCTL_USER"),
    "ca": ("cacert", "LEASEKEEPER_CACERT", "ETCDCTL_CACERT"),
    "cert": ("cert", "LEASEKEEPER_CERT", "ETCDCTL_CERT"),
    "key": ("key", "LEASEKEEPER_KEY_FILE", "LEASEKEEPER_KEY", "ETCDCTL_KEY"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One command's settings.

    ``given``: the global options on the command line. ``timeout_s``: how long the command may take to get what it is
    for; None: its own default.
    """

    given: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)
    format: Format
    timeout_s: float | None

    @classmethod
    def of(cls, ctx: click.Context) -> Settings:
        """Those of a running command."""
        given = ctx.ensure_object(dict)
        return cls(given, os.environ, _format(given, os.environ), _timeout_s(given, os.environ))

    @property
    def as_json(self) -> bool:
        """Whether a program reads the output."""
        return self.format == "json"

    @property
    def ask_s(self) -> float:
        """How long to try to get an answer from etcd."""
        return ASK_S if self.timeout_s is None else self.timeout_s

    def keeper_arguments(self) -> dict[str, Any]:
        """What the keeper is made with; asks for a password when a user is given without one and somebody sits there."""
        _hush_library(self.environment)
        from leasekeeper.wire.environment import read_environment

        environment = dict(self.environment)
        for name, variable in OPTIONS.items():
            if (value := self.given.get(name)) is None:
                continue
            if not value:
                raise ConfigError(field=f"--{name}", value=value, expected="a value that is not empty")
            environment[f"LEASEKEEPER_{variable}"] = value
        if ":" in (self.given.get("user") or ""):
            name, _, password = self.given["user"].partition(":")
            environment.update(LEASEKEEPER_USER=name, LEASEKEEPER_PASSWORD=password)
        with self.errors_named(environment):
            arguments = read_environment(environment)
        if "user" in arguments and "password" not in arguments:
            arguments["password"] = _ask_password(arguments["user"])
        return arguments

    def keeper(self, *, person: bool = False, **more: Any) -> Keeper:
        """A new keeper; the caller closes it. ConfigError for settings that cannot be right.

        ``person``: what the command stores is somebody's word and is read long after this process is gone, so it names the user
        and the host, where no holder is given.
        """
        arguments = self.keeper_arguments()
        if person:
            arguments.setdefault("holder", _user_at_host())
        from leasekeeper.keeper import Keeper

        with self.errors_named():
            return Keeper(**arguments, **more)

    @contextmanager
    def errors_named(self, environment: Mapping[str, str] | None = None) -> Iterator[None]:
        """Have a ConfigError begin with the option or the variable that the wrong value came from."""
        try:
            yield
        except ConfigError as error:
            origin = self._origin(error, self.environment if environment is None else environment)
            if not origin:
                raise
            raise _in_words_of(origin, error) from None

    def _origin(self, error: ConfigError, environment: Mapping[str, str]) -> str:
        option, *variables = ORIGINS.get(error.field, ("",))
        if self.given.get(option) is not None:
            return f"--{option}"
        filled = [variable for variable in variables if environment.get(variable)]
        return next((variable for variable in filled if environment[variable] == error.value), (filled or [""])[0])

    def command_line(self, command: str, name: str, **own: str) -> str:
        """A command about ``name`` for the user to copy: ``own`` are its options, and it gets the global ones of this one.

        Never with a password.
        """
        return shlex.join([*self.own_words(), *words_about(command, name, **own)])

    def own_words(self) -> list[str]:
        """The program with the global options of this command line, to put a command behind; never with a password."""
        options = []
        for option in OPTIONS:
            if value := self.given.get(option):
                options += [f"--{option}", value.partition(":")[0] if option == "user" else value]
        return ["leasekeeper", *options]


def words_about(command: str, name: str, **own: str) -> list[str]:
    """A command about ``name`` with the options ``own``; a name that looks like an option stands where none can."""
    options = [word for option, value in own.items() for word in (f"--{option}", value)]
    return [command, *options, "--", name] if name.startswith("-") else [command, name, *options]


def _in_words_of(origin: str, error: ConfigError) -> ConfigError:
    """The same error about an option or a variable instead of an argument of the library."""
    plain = ConfigError(field=error.field, value=error.value, expected=error.expected)
    expected = EXPECTED.get(error.expected, error.expected)
    if error.message != plain.message:
        text = f"{origin}: {error.message.removeprefix(f'{error.field}: ')}"
        return ConfigError(text, field=origin, value=error.value, expected=expected)
    if error.value is None:
        return ConfigError(f"{origin}: expected {expected}", field=origin, expected=expected)
    return ConfigError(field=origin, value=error.value, expected=expected)


def _user_at_host() -> str:
    """Who sits here, as a holder that can be one."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # an id without a name, as in many containers
        user = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return "".join(c if c.isprintable() else "?" for c in f"{user[:100]}@{socket.gethostname()[:100]}")


def _hush_library(environment: Mapping[str, str]) -> None:
    """The commands say themselves what a person must know; what the library logs is for who looks for a fault."""
    import logging

    if not environment.get(DEBUG):
        _load_grpc_silent()
    log = logging.getLogger("leasekeeper")
    if not log.handlers and not environment.get(DEBUG):
        # Without any handler Python would print warnings to stderr.
        log.addHandler(logging.NullHandler())


def _load_grpc_silent() -> None:
    """Its C library prints lines of its own about every failed handshake; it reads the variable when it begins.

    Which is taken back then: the programs that ``run`` starts have wishes of their own.
    """
    if GRPC_VERBOSITY in os.environ:
        return
    os.environ[GRPC_VERBOSITY] = "NONE"
    try:
        from leasekeeper.wire.channel import begin  # it loads grpc, which only the wire names

        begin()
    finally:
        del os.environ[GRPC_VERBOSITY]


def _ask_password(user: str) -> str:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"user {user!r} has no password: set LEASEKEEPER_PASSWORD", field="password")
    password: str = click.prompt(f"Password for etcd user {user}", hide_input=True, err=True)
    return password


def _format(given: Mapping[str, Any], environment: Mapping[str, str]) -> Format:
    named = given.get("output") or environment.get("LEASEKEEPER_OUTPUT") or "table"
    for known in FORMATS:
        if named == known:
            return known
    raise ConfigError(field="LEASEKEEPER_OUTPUT", value=named[:60], expected=" or ".join(FORMATS))


def _timeout_s(given: Mapping[str, Any], environment: Mapping[str, str]) -> float | None:
    if given.get("timeout") is not None:
        return cast("float", given["timeout"])
    text = environment.get("LEASEKEEPER_TIMEOUT")
    return duration_s("LEASEKEEPER_TIMEOUT", text) if text else None
