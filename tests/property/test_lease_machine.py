"""The gate under any course of beats, read-backs, pauses and losses, in virtual time.

A `Heartbeat` with several sessions lives in a network that changes: its calls are answered soon, late, with odd TTLs, fail,
or stay unanswered for ever; read-backs show the right key, another one or none; the process stands still for any time.
Beside it an oracle keeps its own account of what etcd has confirmed and when that was asked for. The gate may only pass on
the oracle's evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.actions import Action, Beat, Changed, Ended, ReadBack, Revoke, Vacate
from leasekeeper.protocol.authority import Authority, Loss, State
from leasekeeper.protocol.heartbeat import FLYING_MAX, TICK_S, Heartbeat
from leasekeeper.protocol.session import Session
from leasekeeper.timing import Timing
from tests.model.claims import make_session, own, stored

TIMINGS = [
    Timing(ttl=10.0),
    Timing(ttl=2.0),
    Timing(ttl=30.0, beat_every=1.0, pause_after=25.0, margin=1.0),
    Timing(ttl=10.0, give_up_after=3.0),
    Timing(ttl=10.0, max_hold=40.0),
]
ODD_TTLS = (1, 2, 5, 8, 12, 9_223_372_036, 2**63 - 1)
BEATS_AT_LEAST_S = 0.05
ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Network:
    """How calls fare: after how long they are answered, how often they are swallowed or fail, how often an answer is odd.

    ``holes``: how often a key that is read back is missing from the answer.
    """

    delay_s: float = 0.01
    swallows: float = 0.0
    fails: float = 0.0
    odd_ttl: float = 0.0
    odd_key: float = 0.0
    holes: float = 0.0


NETWORKS = st.sampled_from(
    [
        Network(),
        Network(),
        Network(odd_ttl=0.5),
        Network(delay_s=0.7),
        Network(delay_s=1.5, odd_ttl=0.3),
        Network(delay_s=6.0),
        Network(delay_s=11.0, swallows=0.3),
        Network(delay_s=25.0),
        Network(swallows=0.5, odd_ttl=0.2),
        Network(swallows=1.0),
        Network(fails=0.5),
        Network(fails=1.0),
        Network(odd_key=0.2),
        Network(holes=0.5),
        Network(delay_s=0.7, holes=0.8),
        Network(delay_s=3.0, holes=0.3, odd_key=0.05),
        Network(delay_s=0.5, odd_key=0.1, odd_ttl=0.2, fails=0.1, swallows=0.1),
    ]
)


@dataclass
class Evidence:
    """What etcd has confirmed to one session, by the oracle's own account.

    ``proven_s``: the send time, less any TTL granted short, of the best beat that counts. ``waiting``: beats confirmed after
    all authority had lapsed, with their send times; they count once a read-back begun after one of them shows all keys.
    """

    timing: Timing
    proven_s: float
    waiting: list[tuple[float, float]] = field(default_factory=list)
    gone: bool = False

    def alive_until(self) -> float:
        """Until when the last counting proof is worth anything; to the last bit it may be reckoned otherwise."""
        return self.proven_s + self.timing.ttl - self.timing.margin_s + ROUNDING_S

    def confirmed(self, sent_s: float, ttl: int, now_s: float) -> None:
        """A beat sent then was answered now with this TTL."""
        worth_s = sent_s - max(0.0, self.timing.ttl - ttl)
        if now_s < self.alive_until():
            self.proven_s = max(self.proven_s, worth_s)
        self.waiting.append((sent_s, worth_s))

    def read(self, begun_s: float, now_s: float) -> None:
        """Each key has been seen by a read that was begun then or later. Once there is authority later beats count as well."""
        for sent_s, worth_s in sorted(self.waiting):
            if sent_s <= begun_s or now_s < self.alive_until():
                self.proven_s = max(self.proven_s, worth_s)
        self.waiting = [(sent_s, worth_s) for sent_s, worth_s in self.waiting if sent_s > begun_s]

    def allows(self, now_s: float) -> bool:
        """Whether a gate may pass now."""
        young = now_s - self.proven_s < self.timing.pause_s + ROUNDING_S
        return not self.gone and young and now_s < self.alive_until()


@dataclass
class Claim:
    """One owned claim, and what the oracle knows of it alone."""

    authority: Authority
    suspect: bool = False  # its key was seen gone or replaced
    over: State | None = None
    loss: Loss | None = None


@dataclass
class Call:
    """A call in the air: what it asks, when it was sent, which claims were owned then, and when its answer arrives."""

    ask: Beat | ReadBack
    sent_s: float
    owned: frozenset[int]
    arrives_s: float
    fails: bool


class LeaseMachine(RuleBasedStateMachine):
    """Everything that can happen to a keeper's sessions."""

    @initialize(timing=st.sampled_from(TIMINGS), sessions=st.integers(1, 2))
    def begin(self, timing: Timing, sessions: int) -> None:
        """One or two sessions, each with a claim."""
        self.now_s = 100.0
        self.revision = 0
        self.beats = Heartbeat()
        self.network = Network()
        self.air: list[Call] = []
        self.evidence: dict[int, Evidence] = {}
        self.sessions: list[Session] = []
        self.claims: list[Claim] = []
        self.sent: dict[int, float] = {}
        # When each key was last asked for and shown.
        self.seen: dict[tuple[int, bytes], float] = {}
        for number in range(sessions):
            session = make_session(timing, lease_id=0x10 + number, proof_s=self.now_s)
            self.sessions.append(session)
            self.evidence[session.lease_id] = Evidence(timing, self.now_s)
            self.adopt(session)
            self.do(self.beats.add(session, self.now_s), Random(0))

    # ------------------------------------------------------------ what happens

    @rule(network=NETWORKS)
    def the_network_changes(self, network: Network) -> None:
        """From now on calls fare like this."""
        self.network = network

    @rule(seconds=st.sampled_from([0.3, 1.0, 3.0, 6.0, 12.0]) | st.floats(0.0, 20.0), chance=st.randoms())
    def time_passes(self, seconds: float, chance: Random) -> None:
        """The heart beats, and answers arrive."""
        until = self.now_s + seconds
        while True:
            arriving = min(self.air, key=lambda call: call.arrives_s, default=None)
            arrives_s = arriving.arrives_s if arriving is not None else math.inf
            wake_s = self.beats.wake_at(self.now_s)
            if min(arrives_s, wake_s) > until:
                break
            self.check_wake(wake_s)
            if arriving is not None and arrives_s <= wake_s:
                self.now_s = max(self.now_s, arrives_s)
                self.air.remove(arriving)
                self.arrive(arriving, chance)
            else:
                self.now_s = max(self.now_s, wake_s)
                self.do(self.beats.due(self.now_s), chance)
            self.check()
        self.now_s = until
        self.check()

    @rule(seconds=st.sampled_from([0.5, 4.0, 5.0, 9.0, 9.9, 11.0]) | st.floats(0.0, 60.0), chance=st.randoms())
    def the_process_stands_still(self, seconds: float, chance: Random) -> None:
        """SIGSTOP, a suspended laptop: answers lie waiting, and whoever runs first afterwards runs first."""
        self.now_s += seconds
        self.check()
        lying = [call for call in self.air if call.arrives_s <= self.now_s]
        if chance.random() < 0.5:
            self.do(self.beats.due(self.now_s), chance)
        chance.shuffle(lying)
        for call in lying:
            self.air.remove(call)
            self.arrive(call, chance)
            self.check()

    @precondition(lambda self: len(self.claims) < 6)
    @rule(which=st.integers(0, 1))
    def another_claim_is_owned(self, which: int) -> None:
        """Through a session whose proof is fresh, as an acquire demands."""
        session = self.sessions[which % len(self.sessions)]
        if not session.gone and session.fresh(self.now_s):
            self.adopt(session)
            self.check()

    @rule(
        which=st.integers(0, 5),
        what=st.sampled_from(["nothing"] * 6 + ["released", "key deleted", "lease gone", "closed", "forked"]),
        chance=st.randoms(),
    )
    def something_ends(self, which: int, what: str, chance: Random) -> None:
        """An owner gives back, an operator deletes or revokes, the keeper closes or is forked."""
        claim = self.claims[which % len(self.claims)]
        session = claim.authority.session
        if what == "released" and claim.authority.release():
            claim.authority.slot.leaving = True
        elif what == "key deleted":
            claim.suspect = claim.suspect or claim.over is None
            self.do(self.beats.key_gone(claim.authority, self.now_s), chance)
        elif what == "lease gone":
            self.evidence[session.lease_id].gone = True
            self.do(self.beats.lease_gone(session, self.now_s), chance)
        elif what in ("closed", "forked"):
            for authority in session.authorities():
                authority.lose(what, self.now_s)  # type: ignore[arg-type]
            session.shut()
            self.evidence[session.lease_id].gone = True
        self.check()

    # ------------------------------------------------------------ what is done about it

    def adopt(self, session: Session) -> None:
        """One more owned claim."""
        self.revision += 1
        authority = own(session, f"name-{self.revision}", revision=self.revision, now_s=self.now_s)
        self.claims.append(Claim(authority))

    def do(self, actions: list[Action], chance: Random) -> None:
        """Take the actions; the calls among them are in the air from now on."""
        for action in actions:
            match action:
                case Beat(session, _):
                    self.check_storm(session)
                    self.launch(action, chance)
                case ReadBack():
                    self.launch(action, chance)
                case Changed(authority, state):
                    assert authority.state(self.now_s) is state
                case Ended(session):
                    assert session.gone
                case Vacate(slot):
                    slot.session.free(slot)
                case Revoke(session):
                    assert not session.claims()
                    self.beats.discard(session)
                    session.shut()
                    self.evidence[session.lease_id].gone = True

    def launch(self, ask: Beat | ReadBack, chance: Random) -> None:
        """Send a call; the network decides its fate."""
        network, fate = self.network, chance.random()
        owned = frozenset(id(claim) for claim in self.claims if claim.over is None)
        fails = fate < network.fails
        arrives_s = math.inf if not fails and fate < network.fails + network.swallows else self.now_s + network.delay_s
        self.air.append(Call(ask, self.now_s, owned, arrives_s, fails))

    def arrive(self, call: Call, chance: Random) -> None:
        """An answer, or the news that there is none."""
        session, evidence = call.ask.session, self.evidence[call.ask.session.lease_id]
        if isinstance(call.ask, Beat):
            if call.fails:
                self.do(self.beats.failed(session, call.ask.number, "broken", self.now_s), chance)
                return
            ttl = self.ttl(session, chance)
            if ttl <= 0:
                evidence.gone = True
            else:
                evidence.confirmed(call.sent_s, ttl, self.now_s)
                if not any(slot.leaving or slot.authority for slot in session.slots.values()):
                    evidence.read(self.now_s, self.now_s)  # there is no key to read
            self.do(self.beats.answered(session, call.ask.number, ttl, self.now_s), chance)
        elif call.fails:
            self.do(self.beats.read_back_failed(session, self.now_s), chance)
        else:
            shown = [key for key in call.ask.keys if chance.random() >= self.network.holes]
            found = {key: self.shown(session, key, call, chance) for key in shown}
            self.seen.update({(session.lease_id, key): call.sent_s for key in shown})
            evidence.read(self.seen_s(session, call.sent_s), self.now_s)
            self.do(self.beats.read_back(session, found, self.now_s), chance)

    def seen_s(self, session: Session, otherwise_s: float) -> float:
        """Since when every owned key has been seen, or put."""
        owned = [authority for claim in self.claims if (authority := claim.authority).session is session]
        seen = [
            max(self.seen.get((session.lease_id, each.slot.key), -math.inf), each.held_since_s)
            for each in owned
            if not each.shown.final
        ]
        return min(seen, default=otherwise_s)

    def ttl(self, session: Session, chance: Random) -> int:
        """What etcd answers a beat with."""
        if chance.random() >= self.network.odd_ttl:
            return math.ceil(session.timing.ttl)
        return chance.choice(ODD_TTLS) if chance.random() < 0.95 else chance.choice((0, -3))

    def shown(self, session: Session, key: bytes, call: Call, chance: Random) -> pb.KeyValue | None:
        """What a read-back finds at a key."""
        claims = [
            claim for claim in self.claims if claim.authority.session is session and claim.authority.slot.key == key
        ]
        claim = claims[-1]
        if chance.random() >= self.network.odd_key:
            return stored(claim.authority)
        if id(claim) in call.owned and claim.over is None:
            claim.suspect = True
        return chance.choice(
            [
                None,
                stored(claim.authority, revision=claim.authority.create_revision + 1000),
                stored(claim.authority, lease_id=1),
            ]
        )

    # ------------------------------------------------------------ what must hold at every moment

    def check(self) -> None:
        """All invariants."""
        for claim in self.claims:
            self.check_gate(claim)
            self.check_end(claim)
        for pulse in self.beats._pulses.values():
            assert len(pulse.flying) <= FLYING_MAX

    def check_gate(self, claim: Claim) -> None:
        """G3, G5: it passes only on a beat young enough by its send time; after a lapse only with a read-back begun later."""
        authority = claim.authority
        passes = authority.passes(0.0, self.now_s)
        if passes:
            assert self.evidence[authority.session.lease_id].allows(self.now_s)
            assert not claim.suspect
            assert authority.remaining(self.now_s) > 0
        assert passes == (authority.state(self.now_s) is State.HELD)

    def check_end(self, claim: Claim) -> None:
        """LOST never reverts and its first reason stands; RELEASED never becomes LOST; a lease that is gone is LOST."""
        authority = claim.authority
        state = authority.state(self.now_s)
        if claim.over is not None:
            assert state is claim.over
            assert authority.loss is claim.loss
        elif state.final:
            claim.over, claim.loss = state, authority.loss
            assert (state is State.LOST) == (claim.loss is not None)
        else:
            assert not self.evidence[authority.session.lease_id].gone

    def check_storm(self, session: Session) -> None:
        """However many claims there are and whatever fails, beats are 50 ms apart, and one interval where they are answered."""
        last_s, self.sent[session.lease_id] = self.sent.get(session.lease_id, -math.inf), self.now_s
        assert self.now_s - last_s >= BEATS_AT_LEAST_S - ROUNDING_S
        assert session.claims()

    def check_wake(self, wake_s: float) -> None:
        """Whoever sleeps until wake_at is late for no beat, and sleeps no longer than a tick."""
        if len(self.beats):
            assert wake_s <= self.now_s + TICK_S
        for pulse in self.beats._pulses.values():
            assert wake_s <= pulse.next_at
            assert wake_s <= pulse.late_at


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
