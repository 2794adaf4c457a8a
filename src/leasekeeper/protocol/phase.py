"""A phase of a run: one of a few words, moved only along transitions that were declared, by compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.checkpoint import commit, envelope_change, read
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.outcome import joined
from leasekeeper.protocol.receipt import text_of
from leasekeeper.protocol.schema import Envelope, read_envelope
from leasekeeper.run_errors import CorruptState, IllegalTransition
from leasekeeper.schema_errors import SchemaTooNew

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.plan import Plan

__all__ = ["Transitions", "move", "now_in", "transitions"]

SCHEMA = "leasekeeper.phase"
VERSION = 1
PHASES_MAX = 64


@dataclass(frozen=True, slots=True)
class Transitions:
    """Which phases there are, the first one first, and which may follow which."""

    first: str
    follow: Mapping[str, tuple[str, ...]]

    def check(self, name: str, have: str, wanted: str) -> None:
        """IllegalTransition when it may not follow."""
        legal = self.follow.get(have, ())
        if wanted not in legal:
            raise IllegalTransition(name=name, have=have, wanted=wanted, legal=legal)


def transitions(declared: object) -> Transitions:
    """Transitions as somebody declares them: ``{"staged": ["distributed"], …}``, the first key being where it begins."""
    expected = "a dict of phase to the phases that may follow it, the first one first, at most 64"
    if not isinstance(declared, Mapping) or not 1 <= len(declared) <= PHASES_MAX:
        raise ConfigError(field="legal_transitions", value=declared, expected=expected)
    follow: dict[str, tuple[str, ...]] = {}
    for phase, after in declared.items():
        if isinstance(after, str) or not isinstance(after, Iterable):
            raise ConfigError(field=f"legal_transitions[{phase!r}]", value=after, expected="a list of phases")
        follow[check_name(phase, "phase")] = tuple(check_name(each, "phase") for each in after)
    for each in tuple(after for afters in follow.values() for after in afters):
        follow.setdefault(each, ())
    return Transitions(next(iter(follow)), follow)


def now_in(log: Log, name: str, legal: Transitions, until: float) -> Plan[tuple[str, int, int]]:
    """The phase, how often it was moved, and the revision of the last move (0: never, it is in the first one)."""
    kv = yield from read(log, name, until)
    if kv is None:
        return legal.first, 0, 0
    where = kv.key.decode("utf-8", "replace")
    envelope = read_envelope(kv.value, where)
    if envelope.schema == SCHEMA and envelope.version > VERSION:
        raise SchemaTooNew(schema="phase", version=envelope.version, reads=VERSION, where=where)
    phase = envelope.data.get("phase")
    if envelope.schema != SCHEMA or not isinstance(phase, str):
        raise CorruptState(f"{where} is no phase", where=where, why="it is no phase")
    if phase not in legal.follow:
        raise IllegalTransition(name=name, have=phase, wanted=phase, legal=tuple(legal.follow))
    return phase, envelope.n, kv.mod_revision


def move(log: Log, name: str, legal: Transitions, wanted: str, until: float) -> Plan[str]:
    """Move to a phase that may follow the present one: the phase moved from.

    Raises IllegalTransition, and StaleCheckpoint when somebody moved it meanwhile; Fenced.
    """
    have, n, mod_revision = yield from now_in(log, name, legal, until)
    legal.check(name, have, wanted)
    envelope = Envelope(SCHEMA, VERSION, VERSION, n + 1, 1, {"phase": wanted})
    change = envelope_change(name, log.keys.checkpoint(name), mod_revision, envelope)
    words = {"from": have, "name": name, "to": wanted}
    record = joined(n=b"%d" % (n + 1), **{word: text_of(text).encode() for word, text in words.items()})
    yield from commit(log, change, "phase", record)
    return have
