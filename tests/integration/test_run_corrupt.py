"""What is stored of a run, damaged by etcd's own tools: a typed error, no effect, and never a default in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from leasekeeper import CorruptState, Keeper, RunHalted, RunRewound, SchemaTooNew, SigningKeyMissing
from leasekeeper.errors import LeasekeeperError
from leasekeeper.protocol.receipt import seal, signed_part
from leasekeeper.runs.run import Run
from leasekeeper.signing import Ed25519Key, HmacKey, SigningKey
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd

KEY = HmacKey("k1", b"0123456789abcdef")
OTHER = HmacKey("k2", b"fedcba9876543210")


@dataclass(frozen=True)
class Stored:
    """A run that was begun and has died, and who touches it."""

    keeper: Keeper
    raw: RawEtcd
    root: str
    called: list[str]

    def effect(self, what: str) -> str:
        """An effect."""
        self.called.append(what)
        return what * 3

    def value(self, name: str) -> bytes:
        """What stands in a key of the run."""
        (found,) = [each for each in self.raw.keys(self.root + name) if each.key == self.root + name]
        return found.value

    def go_on(self, signer: SigningKey | None = None) -> None:
        """The next life: the same program again, from its beginning."""
        with self.keeper.run("order", id="1", signer=signer, ttl=5, timeout=10) as run:
            self.program(run)

    def program(self, run: Run) -> None:
        """Two steps, a large result, a state, a phase; a third step that has not been done yet."""
        run.do("one", self.effect, "one")
        run.do("large", self.large)
        run.do("two", self.effect, "two")
        state = run.checkpoint("state", dict)
        if state.value is None:
            state.commit(paid=1)
        else:
            assert state.value == {"paid": 1}
        phase = run.phase("keys", {"staged": ["active"]})
        if phase.now() == "staged":
            phase.move("active")
        if self.called[:1] == ["die"]:
            raise KeyError("die")
        run.do("three", self.effect, "three")

    def large(self) -> str:
        """A result that does not fit into a record."""
        self.called.append("large")
        return "x" * 300_000


@pytest.fixture
def stored(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> Iterator[Stored]:
    """A run of which all but the last step is done."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        made = Stored(keeper, raw, f"leasekeeper/{namespace}/run/order/1/", ["die"])
        with pytest.raises(KeyError):
            made.go_on()
        assert made.called == ["die", "one", "large", "two"]
        made.called[:] = []
        yield made
        # The keeper's own use of etcd is not disturbed by what happened to one run.
        with keeper.lease("another", timeout=5):
            pass


def flipped(value: bytes) -> bytes:
    """One bit of one byte in the middle."""
    at = len(value) // 2
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": flipped,
    "cut off": lambda value: value[: len(value) // 2],
    "empty": lambda value: b"",
    "junk": lambda value: b"\x00\xff\xfe junk",
    "json": lambda value: b'{"a":1}',
    "longer": lambda value: value + b" ",
}
KEYS = {
    "meta": "meta",
    "head": "head",
    "the first record": "r/000000000001",
    "an intent": "r/000000000002",
    "an outcome": "r/000000000003",
    "the last record": "last",
    "a checkpoint": "ck/state",
    "a phase": "ck/keys",
}


def name_of(stored: Stored, name: str) -> str:
    """The key that is meant."""
    if name == "last":
        return max(each.key for each in stored.raw.keys(stored.root + "r/")).removeprefix(stored.root)
    return name


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", KEYS)
def test_damaged(stored: Stored, name: str, damage: str) -> None:
    """A3: each kind of key, damaged in each way: CorruptState, which says where; no effect runs, nothing is written over."""
    key = name_of(stored, KEYS[name])
    value = DAMAGES[damage](stored.value(key))
    stored.raw.put(stored.root + key, value)
    with pytest.raises(CorruptState) as told:
        stored.go_on()
    assert told.value.where
    assert told.value.why
    assert "runs verify" in str(told.value) or told.value.where in str(told.value)
    assert stored.called == []
    assert stored.value(key) == value


@pytest.mark.parametrize("name", KEYS)
def test_gone(stored: Stored, name: str) -> None:
    """A3, A5: each kind of key, deleted: what is left does not pass for a run that is younger; a state has no default."""
    key = name_of(stored, KEYS[name])
    stored.raw.delete(stored.root + key)
    expected: tuple[type[LeasekeeperError], ...] = (CorruptState, RunRewound)
    with pytest.raises(expected):
        stored.go_on()
    assert stored.called == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_step_whose_key_is_damaged(stored: Stored, damage: str) -> None:
    """A3: where a step stands is damaged, and the records have its outcome: that is given, and the step not called again."""
    stored.raw.put(stored.root + "step/two", DAMAGES[damage](stored.value("step/two")))
    try:
        stored.go_on()
    except CorruptState:
        assert stored.called == []
    else:
        assert stored.called == ["three"]


def test_a_new_step_on_a_damaged_key(stored: Stored) -> None:
    """A3: where a new step should stand there is something that we did not write: nothing is called."""
    stored.raw.put(stored.root + "step/three", b"junk")
    with pytest.raises(CorruptState):
        stored.go_on()
    assert stored.called == []


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_damaged_piece_of_a_large_result(stored: Stored, what: str) -> None:
    """A3: a piece of a large result, changed or gone, is found by the digest in its record."""
    pieces = [each.key for each in stored.raw.keys(stored.root + "blob/")]
    assert len(pieces) == 2
    if what == "gone":
        stored.raw.delete(pieces[1])
    else:
        stored.raw.put(pieces[1], flipped(stored.value(pieces[1].removeprefix(stored.root))))
    with pytest.raises(CorruptState):
        stored.go_on()
    assert stored.called == []


def test_two_records_in_each_others_place(stored: Stored) -> None:
    """A5: two records swapped, each intact in itself."""
    first, second = stored.value("r/000000000003"), stored.value("r/000000000005")
    stored.raw.put(stored.root + "r/000000000003", second)
    stored.raw.put(stored.root + "r/000000000005", first)
    with pytest.raises(CorruptState):
        stored.go_on()
    assert stored.called == []


def test_records_of_another_run(stored: Stored) -> None:
    """A5: a whole other run, put in this one's place: it belongs elsewhere."""
    with stored.keeper.run("order", id="2", signer=None) as run:
        run.do("one", len, "xx")
    other = stored.root[:-2] + "2/"
    for each in stored.raw.keys(stored.root):
        stored.raw.delete(each.key)
    for each in stored.raw.keys(other):
        stored.raw.put(stored.root + each.key.removeprefix(other), each.value)
    with pytest.raises(CorruptState):
        stored.go_on()
    assert stored.called == []


def test_the_identity(stored: Stored) -> None:
    """A3: the namespace's identity damaged, or gone: no run goes on with keys that nobody has seen before."""
    root = stored.root.partition("run/")[0]
    (kv,) = stored.raw.keys(root + "identity")
    stored.raw.put(kv.key, flipped(kv.value))
    with pytest.raises(CorruptState):
        stored.go_on()
    stored.raw.delete(kv.key)
    for _ in range(2):  # and no other one is made meanwhile
        with pytest.raises(CorruptState, match="identity: it is not there, and runs are: put it back"):
            stored.go_on()
    assert stored.raw.keys(kv.key) == []
    assert stored.called == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_halt_that_cannot_be_read_halts(stored: Stored, damage: str) -> None:
    """B15: a halt's record damaged: its scope is halted all the same, and can be lifted."""
    stored.keeper.halt("order/*", "stop")
    key = stored.root.partition("run/")[0] + "halt/order%2F*"
    (kv,) = stored.raw.keys(key)
    stored.raw.put(key, DAMAGES[damage](kv.value))
    with pytest.raises(RunHalted):
        stored.go_on()
    assert stored.called == []
    assert [halt.scope for halt in stored.keeper.halts()] == ["order/*"]
    assert stored.keeper.unhalt("order/*")
    stored.go_on()
    assert stored.called == ["three"]


@pytest.mark.parametrize("name", ["meta", "head"])
def test_a_newer_format(stored: Stored, name: str) -> None:
    """B17: a record of a newer format is refused as that, not called damaged; nothing is written over it."""
    body = signed_part(stored.value(name))
    at = body.rindex(b'"v":1')
    value = seal(body[:at] + b'"v":2' + body[at + 5 :], None)
    stored.raw.put(stored.root + name, value)
    with pytest.raises(SchemaTooNew, match="newer leasekeeper"):
        stored.go_on()
    assert stored.value(name) == value
    assert stored.called == []


def test_a_newer_envelope(stored: Stored) -> None:
    """B17: a checkpoint in a newer format of envelopes is refused by name."""
    import hashlib
    import json

    from leasekeeper.canonical import canonical

    fields = json.loads(stored.value("ck/state"))
    del fields["digest"]
    fields["v"] = 2
    stored.raw.put(
        stored.root + "ck/state", canonical({**fields, "digest": hashlib.sha256(canonical(fields)).hexdigest()})
    )
    with pytest.raises(SchemaTooNew):
        stored.go_on()
    assert stored.called == []


# ---------------------------------------------------------------- signed


@pytest.fixture
def signed(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> Iterator[Stored]:
    """A signed run that died."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        made = Stored(keeper, raw, f"leasekeeper/{namespace}/run/order/1/", ["die"])
        with pytest.raises(KeyError):
            made.go_on(KEY)
        made.called[:] = []
        yield made


def test_without_the_key(signed: Stored) -> None:
    """A signed run is not taken over without its key, nor with another one that does not trust it."""
    for signer in (None, OTHER):
        with pytest.raises(SigningKeyMissing) as told:
            signed.go_on(signer)
        assert told.value.key_id == "k1"
    assert signed.called == []
    signed.go_on(KEY)
    assert signed.called == ["three"]


def test_a_key_pair(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """With Ed25519 as with a secret: signed records are believed by their key alone, and by one that trusts its public half."""
    first, second = Ed25519Key("e1", b"1" * 32), Ed25519Key("e2", b"2" * 32)
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        made = Stored(keeper, raw, f"leasekeeper/{namespace}/run/order/1/", ["die"])
        with pytest.raises(KeyError):
            made.go_on(first)
        made.called[:] = []
        for signer in (None, second, KEY):
            with pytest.raises(SigningKeyMissing):
                made.go_on(signer)

        def with_trust() -> None:
            with keeper.run("order", id="1", signer=second, trust=[first.public]) as run:
                assert run.do("one", made.effect, "one") == "oneoneone"
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            with_trust()
        # What the first key has signed is not believed without it; what the second has, is.
        with pytest.raises(SigningKeyMissing) as told:
            made.go_on(second)
        assert told.value.key_id == "e1"
        assert made.called == []


def test_no_secret_is_shown(signed: Stored) -> None:
    """No repr of a run, or of anything that it is made of, shows the namespace's secret or the signing key's."""
    with signed.keeper.run("order", id="1", signer=KEY) as run:
        secret = run._life.opened.identity.secret
        shown = "".join(map(repr, (run, run._life, run._life.opened, run._life.log, run._options, run.last())))
        run.do("three", signed.effect, "three")
    for each in (secret, KEY.secret):
        assert each.hex() not in shown
        assert repr(each)[2:-1] not in shown


def test_a_key_that_trusts_the_one_before(signed: Stored) -> None:
    """A new key goes on where it trusts the old one; from then on the old one alone does not."""
    with signed.keeper.run("order", id="1", signer=OTHER, trust=[KEY]) as run:
        assert run.last().key_id == "k2"
        run.do("three", signed.effect, "three")
        kinds = [each.kind for each in (run.last(),)]
        assert kinds == ["outcome"]
    assert signed.called == ["three"]


@pytest.mark.parametrize("key", [None, OTHER, HmacKey("k1", b"another secret of that id")])
def test_a_last_record_that_was_made_anew(signed: Stored, key: HmacKey | None) -> None:
    """A5: the last record, with its hash and the head put right again, unsigned or signed by another key: not gone on with."""
    from leasekeeper.protocol.head import read_head
    from leasekeeper.protocol.receipt import digest

    name = name_of(signed, "last")
    forged = seal(signed_part(signed.value(name)).replace(b'"text":"', b'"text":"x'), key)
    head = read_head(signed.value("head"), "head")
    signed.raw.put(signed.root + name, forged)
    signed.raw.put(
        signed.root + "head", head._replace(hash=digest(forged), key_id="" if key is None else key.key_id).stored()
    )
    with pytest.raises((CorruptState, SigningKeyMissing)):
        signed.go_on(KEY)
    assert signed.called == []


def test_an_outcome_that_was_made_anew_while_the_run_is_open(signed: Stored) -> None:
    """A3: a result changed behind the back of an owner that has already opened the run: it is signed, so that shows."""
    name = "r/000000000003"
    forged = seal(signed_part(signed.value(name)).replace(b"oneoneone", b"twotwotwo"), None)

    def open_and_ask() -> None:
        with signed.keeper.run("order", id="1", signer=KEY) as run:
            signed.raw.put(signed.root + name, forged)
            run.do("one", signed.effect, "one")

    with pytest.raises(CorruptState):
        open_and_ask()
    assert signed.called == []
