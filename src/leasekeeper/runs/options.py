"""How a run is opened: what is checked before anything is asked of etcd."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from leasekeeper._version import __version__
from leasekeeper.canonical import canonical
from leasekeeper.errors import AuthError, ConfigError, Misuse, shown
from leasekeeper.protocol.limits import VALUE_MAX, check_inline
from leasekeeper.protocol.opening import Opening
from leasekeeper.protocol.run_keys import RunName
from leasekeeper.run_errors import NotSerialisable
from leasekeeper.runs.signer import signer_from_env, trust_from_env
from leasekeeper.signing import Keyring

if TYPE_CHECKING:
    from typing_extensions import Unpack  # for type checkers alone, which all know it; Python has it from 3.11 on

    from leasekeeper.protocol.incarnation import Blobs
    from leasekeeper.runs.alert import Alert
    from leasekeeper.runs.anchor import Anchor
    from leasekeeper.runs.effect import Effect
    from leasekeeper.signing import SigningKey, VerifyingKey

__all__ = ["Asked", "AskedOfWorker", "RunOptions", "check_asked_of_worker", "opening", "options"]

RESTARTS_MAX = 10_000
# What is no option of a worker, and what says it instead.
NOT_OF_A_WORKER = {
    "id": "a worker goes on with every run of its workflows that nobody owns; one run alone is keeper.run(…, id=…)",
    "input": "a run is begun with it, by keeper.begin(…, input=…) or keeper.run(…, input=…), and has it from then on",
    "generation": "a worker goes on with the one that was begun, by keeper.begin(…, generation=…)",
    "ask_first": "it is asked before a run is begun, and a worker goes on with those that were: give it to keeper.run",
    "timeout": "a worker waits for no lease: it takes the runs whose lease is free",
}
# What stands beside the input in the record of a run's beginning.
ROOM = 2048
STARTED_MS = int(time.time() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run is opened, checked. ``input`` is canonical JSON; ``asked`` an effect and its arguments."""

    name: RunName
    input: bytes | None = None
    generation: int | None = None
    verify: Literal["always", "recorded"] = "always"
    signer: SigningKey | None = None
    trust: tuple[VerifyingKey, ...] = ()
    adopt_unsigned: bool = False
    anchors: tuple[Anchor, ...] = ()
    durability: Literal["etcd", "drained"] = "etcd"
    blobs: Blobs | None = None
    quota: int | None = None
    restarts: int = 10
    alert: Callable[[Alert], object] | None = None
    asked: tuple[Effect, tuple[Any, ...]] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class AskedOfWorker(TypedDict, total=False):
    """What a worker can be asked for: how it opens the runs that it goes on with. See `Asked`."""

    verify: Literal["always", "recorded"]
    signer: SigningKey | Literal["env"] | None
    trust: Sequence[VerifyingKey]
    adopt_unsigned: bool
    anchors: Sequence[Anchor]
    durability: Literal["etcd", "drained"]
    blobs: Blobs | None
    quota: int | None
    restarts: int
    alert: Callable[[Alert], object] | None


class Asked(AskedOfWorker, total=False):
    """What `Keeper.run` can be asked for, beside the run's name.

    ``input``, ``generation`` and ``ask_first`` are of a run's beginning: no options of a worker.

    =================  ==============================================================================================
    ``input``          JSON that the run is to work on, recorded when it is begun; other input later is InputChanged.
                       A run that is resumed without it gets the recorded one, as ``run.input``
    ``generation``     2 or more for an id that was pruned and is to be used again
    ``verify``         whether replays ask postconditions again: ``always`` (default) or ``recorded``
    ``signer``         the key that signs the records: default ``env``, see `leasekeeper.runs.signer`; None: unsigned
    ``trust``          keys by which earlier lives may have signed, beside those of ``LEASEKEEPER_TRUST_FILE``
    ``adopt_unsigned`` True: also a run that was begun without a key is taken over by one who signs, from there on signed;
                       by default it is CorruptState, since somebody may have taken the signatures off
    ``anchors``        what remembers the head outside of etcd: `leasekeeper.runs.anchor`
    ``durability``     ``drained``: a step waits for the anchors before it acts; ``etcd`` (default): it does not
    ``blobs``          where large results are kept; default: in etcd, in pieces
    ``quota``          bytes that etcd's database may have; default: what etcd tells, or 2 GiB
    ``restarts``       how often it may be begun again without a step done; once more, and it is quarantined; default 10
    ``alert``          called with an `Alert` when somebody has to look: `leasekeeper.runs.alert`
    ``ask_first``      an effect and its arguments: its preflight is asked before the lease is taken; where it is applied
                       and the run was never begun, entering raises Conflict
    =================  ==============================================================================================
    """

    input: object
    generation: int | None
    ask_first: Sequence[Any] | None


def options(workflow: str, *, id: str, **asked: Unpack[Asked]) -> RunOptions:  # noqa: A002 - the public word
    """Check what somebody asks for; nothing has been sent when it is refused."""
    _check_known(asked)
    verify, durability = asked.get("verify", "always"), asked.get("durability", "etcd")
    generation, quota, restarts = asked.get("generation"), asked.get("quota"), asked.get("restarts", 10)
    alert, signer, blobs = asked.get("alert"), asked.get("signer", "env"), asked.get("blobs")
    anchors = _anchors(asked.get("anchors", ()))
    trust = _keys(asked.get("trust", ()))
    given = asked.get("input")
    name = RunName(workflow, id)
    begun_with = None if given is None else _input(given)
    if generation is not None:
        _check_whole("generation", generation, 1, 10**9)
    if quota is not None:
        _check_whole("quota", quota, 1, 2**53)
    _check_whole("restarts", restarts, 0, RESTARTS_MAX)
    if verify not in ("always", "recorded"):
        raise ConfigError(field="verify", value=verify, expected="'always' or 'recorded'")
    if durability not in ("etcd", "drained"):
        raise ConfigError(field="durability", value=durability, expected="'etcd' or 'drained'")
    if durability == "drained" and not anchors:
        raise ConfigError(
            field="durability", value=durability, expected="an anchor beside it, which the step waits for"
        )
    if type(asked.get("adopt_unsigned", False)) is not bool:
        raise ConfigError(field="adopt_unsigned", value=asked.get("adopt_unsigned"), expected="True or False")
    if not (signer is None or signer == "env" or _has(signer, "sign")):
        raise _no_key("signer", signer, "'env', None, or a key that signs, as of leasekeeper.signing")
    if not (blobs is None or _has(blobs, "put", "get")):
        raise ConfigError(field="blobs", value=blobs, expected="a store of leasekeeper.runs.blobs, or None")
    _check_alert(alert)
    return RunOptions(
        name=name,
        input=begun_with,
        generation=generation,
        verify=verify,
        signer=signer_from_env() if signer == "env" else signer,
        trust=_with_environment(trust),
        adopt_unsigned=asked.get("adopt_unsigned", False),
        anchors=anchors,
        durability=durability,
        blobs=blobs,
        quota=quota,
        restarts=restarts,
        alert=alert,
        asked=_asked(asked.get("ask_first")),
    )


def check_asked_of_worker(asked: Mapping[str, object]) -> None:
    """Misuse for an option that makes sense where a run is begun or waited for, and not in a worker."""
    for name in asked:
        if name in NOT_OF_A_WORKER:
            raise Misuse(f"{name}={shown(asked[name])} is no option of a worker: {NOT_OF_A_WORKER[name]}")
    _check_known(asked)


def _check_known(asked: Mapping[str, object]) -> None:
    unknown = sorted(asked.keys() - Asked.__annotations__.keys())
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}: see leasekeeper.runs.options.Asked")


def _anchors(given: object) -> tuple[Anchor, ...]:
    found = tuple(given) if isinstance(given, Iterable) else None
    if found is not None and all(_has(one, "remember", "last") for one in found):
        return found
    raise ConfigError(field="anchors", value=given, expected="a list of anchors, as of leasekeeper.runs.anchor")


def _keys(given: object) -> tuple[VerifyingKey, ...]:
    expected = "a list of keys that verify, as of leasekeeper.signing"
    if not isinstance(given, Iterable):
        raise _no_key("trust", given, expected)
    found = tuple(given)
    for one in found:
        if not _has(one, "verifies"):
            raise _no_key("trust", one, expected)
    return found


def _with_environment(given: tuple[VerifyingKey, ...]) -> tuple[VerifyingKey, ...]:
    """The keys that the program gave, and those of the environment; of two of one id the program's."""
    known = {key.key_id for key in given}
    return (*given, *(key for key in trust_from_env() if key.key_id not in known))


def _check_alert(alert: object) -> None:
    if alert is not None and (not callable(alert) or inspect.iscoroutinefunction(alert)):
        raise Misuse(f"alert={shown(alert)}: expected a plain function that takes an Alert")


def _no_key(name: str, given: object, expected: str) -> ConfigError:
    """The error for what is no key; never with its value, which may be the secret itself."""
    kind = type(given).__name__
    return ConfigError(f"{name}: expected {expected}, not {kind}", field=name, value=f"<{kind}>", expected=expected)


def _has(given: object, *calls: str) -> bool:
    """Whether it has these methods; a class has them, too, and is no such thing."""
    return not isinstance(given, type) and all(callable(getattr(given, call, None)) for call in calls)


def _input(given: object) -> bytes:
    try:
        text = canonical(given, "input", big="text", most=VALUE_MAX)
    except ConfigError as error:
        raise NotSerialisable(field=error.field, value=error.value, expected=error.expected) from None
    check_inline("input", len(text) + ROOM)
    return text


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(field=name, value=value, expected=f"a whole number from {least} to {most}")


def _asked(given: Sequence[Any] | None) -> tuple[Effect, tuple[Any, ...]] | None:
    from leasekeeper.runs.effect import Effect

    if given is None:
        return None
    asked = tuple(given) if isinstance(given, (list, tuple)) else ()
    if not asked or not isinstance(asked[0], Effect):
        raise ConfigError(
            field="ask_first", value=given, expected="a list: an effect with a preflight, then its arguments"
        )
    return asked[0], asked[1:]


def opening(options: RunOptions, *, claim: str, lease_id: int, host: str, pid: int) -> Opening:
    """What the protocol is told of who opens a run."""
    facts = {
        "boot_id": _boot_id(),
        "claim": claim,
        "host": host,
        "image": os.environ.get("LEASEKEEPER_IMAGE", "")[:200],
        "lease": f"{lease_id:x}",
        "pid": pid,
        "pod_uid": os.environ.get("LEASEKEEPER_POD_UID", "")[:100],
        "started_at": STARTED_MS,
        "version": __version__,
    }
    return Opening(
        life=os.urandom(16).hex(),
        facts=facts,
        input=options.input,
        gen=options.generation,
        signer=options.signer,
        ring=ring(options),
        marks={},
        budget=options.restarts,
        adopt_unsigned=options.adopt_unsigned,
    )


def ring(options: RunOptions) -> Keyring | None:
    """The keys by which a run's records are believed: one's own, and those that were given to trust."""
    keys: list[Any] = list(options.trust)
    own = getattr(options.signer, "public", options.signer)
    if own is not None and hasattr(own, "verifies"):
        keys = [key for key in keys if key.key_id != own.key_id] + [own]
    try:
        return Keyring(*keys) if keys else None
    except AuthError as error:
        raise ConfigError(field="trust", value="", expected=str(error)) from None


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""
