"""`runs export|state|keygen` against a real etcd: what is put into files, and a run as it was at any record."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import ConfigError, Keeper
from leasekeeper.protocol.key_text import signing_key
from leasekeeper.runs.export import Record, read_export
from tests.raw import RawEtcd
from tests.told_runs import Hands, finished

# The text of an HMAC key.
TEXT = "hmac:k1:" + base64.b64encode(b"thirty-two bytes of a secret key").decode()

# ---------------------------------------------------------------- export and state


def test_export_to_a_file_and_to_stdout(cli: Any, keeper: Keeper, hands: Hands, tmp_path: Path) -> None:
    """B14: the file holds the stored bytes, is its owner's alone, and stdout gives the same lines for a pipe."""
    finished(keeper)
    out = tmp_path / "o.jsonl"
    done = cli("runs", "export", "order/o-1", "--out", str(out), "-o", "json")
    assert (done.code, done.json["records"], done.json["ok"], done.json["key_id"]) == (0, 8, True, None)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with out.open("rb") as stream:
        assert [line.stored for line in read_export(stream) if isinstance(line, Record)] == [
            key.value for key in hands.records()
        ]
    piped = cli("runs", "export", "order/o-1").out.splitlines()
    assert piped[1:-1] == out.read_text().splitlines()[1:-1]


def test_export_says_what_is_damaged(cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands, tmp_path: Path) -> None:
    """Damage is exported as it is, told, and makes the exit code 1."""
    finished(keeper)
    raw.put(hands.key(3), "no receipt")
    done = cli("runs", "export", "order/o-1", "--out", str(tmp_path / "o.jsonl"))
    assert done.code == 1
    assert "record 3 is corrupt" in done.out


def test_a_good_export_is_not_replaced_by_a_lesser_one(
    cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands, tmp_path: Path
) -> None:
    """A nightly export of a run that was damaged meanwhile keeps the good one, tells so, and has an exit code of its own."""
    finished(keeper)
    out = tmp_path / "o.jsonl"
    assert cli("runs", "export", "order/o-1", "--out", str(out)).code == 0
    assert cli("runs", "export", "order/o-1", "--out", str(out)).code == 0  # unchanged: the same again
    good = out.read_bytes()
    raw.put(hands.key(3), "no receipt")
    done = cli("runs", "export", "order/o-1", "--out", str(out))
    assert (done.code, done.out, done.err.count("\n")) == (73, "", 1)
    assert "was left as it is" in done.err
    assert "record 3 is corrupt" in done.err
    assert out.read_bytes() == good
    told = cli("runs", "export", "order/o-1", "--out", str(out), "-o", "json")
    assert (told.code, told.json["kept"], told.json["ok"]) == (73, True, False)
    beside = cli("runs", "export", "order/o-1", "--out", str(tmp_path / "damaged.jsonl"))
    assert beside.code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.jsonl", "o.jsonl"]


def test_what_is_no_earlier_export_of_the_run_is_not_overwritten(cli: Any, keeper: Keeper, tmp_path: Path) -> None:
    """Another run's export, or a file that is none, is left as it is."""
    finished(keeper)
    finished(keeper, "o-2")
    other, notes = tmp_path / "o-2.jsonl", tmp_path / "notes"
    cli("runs", "export", "order/o-2", "--out", str(other))
    notes.write_text("what I saw\n")
    for file, why in ((other, "an export of order/o-2"), (notes, "no export")):
        before = file.read_bytes()
        done = cli("runs", "export", "order/o-1", "--out", str(file))
        assert (done.code, done.err.count("\n")) == (73, 1)
        assert why in done.err
        assert file.read_bytes() == before


def test_a_signed_run_is_exported_without_its_key_and_it_is_said_what_that_is_worth(
    cli: Any, keeper: Keeper, hands: Hands, tmp_path: Path
) -> None:
    """Such an export is told not to be for pruning, is refused there, and does not take the place of a signed one."""
    finished(keeper, signer=signing_key(TEXT, "key"))
    out, signed = tmp_path / "o.jsonl", tmp_path / "signed.jsonl"
    assert cli("runs", "export", "order/o-1", "--out", str(signed), env={"LEASEKEEPER_SIGNING_KEY": TEXT}).err == ""
    for words in (("--out", str(out)), ()):
        done = cli("runs", "export", "order/o-1", *words)
        assert (done.code, done.err.count("\n")) == (0, 1)
        assert "signed by key 'k1', and this export is not" in done.err
        assert "no key was given" not in done.out
    refused = cli("runs", "prune", "order/o-1", "--exported", str(out))
    assert refused.code == 1
    assert "LEASEKEEPER_SIGNING_KEY_FILE" in refused.err
    with pytest.raises(ConfigError, match="not signed"):
        keeper.prune("order/o-1", exported=out)
    assert hands.records()
    assert cli("runs", "export", "order/o-1", "--out", str(signed)).code == 73
    ring, other = tmp_path / "ring", tmp_path / "other"
    for file, text in ((ring, TEXT), (other, TEXT.replace("dGhp", "dGhx"))):
        file.write_text(text)
        file.chmod(0o600)
    forged = cli("runs", "prune", "order/o-1", "--exported", str(signed), "--keys", str(other))
    assert (forged.code, forged.out) == (2, "")
    assert "record 1 is forged" in forged.err
    assert hands.records()
    assert cli("runs", "prune", "order/o-1", "--exported", str(signed), "--keys", str(ring)).code == 0


def test_an_export_of_a_pruned_run_says_that_it_was_pruned(cli: Any, keeper: Keeper, tmp_path: Path) -> None:
    """Of a run whose records are gone because they were exported, no more is said than that."""
    finished(keeper)
    out = str(tmp_path / "o.jsonl")
    cli("runs", "export", "order/o-1", "--out", out)
    cli("runs", "prune", "order/o-1", "--exported", out)
    done = cli("runs", "export", "order/o-1", "--out", str(tmp_path / "again.jsonl"))
    assert done.code == 2
    assert "was not pruned" in done.err
    for words in ("verify", "state"):
        told = cli("runs", words, "order/o-1")
        assert told.code == 1
        assert "exported and pruned" in told.out + told.err
        assert "BAD" not in told.out


def test_state_at_any_record(cli: Any, keeper: Keeper, tmp_path: Path) -> None:
    """B14: time travel, from etcd and from an export alike: before a step, after it, and at the end."""
    finished(keeper)
    out = tmp_path / "o.jsonl"
    cli("runs", "export", "order/o-1", "--out", str(out))
    for source in (("order/o-1",), ("--file", str(out))):
        begun = cli("runs", "state", *source, "--at", "2", "-o", "json").json
        assert begun["steps"] == {"step-0": "intent"}
        assert begun["checkpoints"] == {}
        end = cli("runs", "state", *source, "-o", "json").json
        assert (end["seq"], end["status"]) == (8, "finished")
        assert end["checkpoints"] == {"state": {"paid": True}}
        assert end["phases"] == {"goods": "sent"}
        assert cli("runs", "state", *source, "--at", "0", "-o", "json").json["steps"] == {}
    assert "checkpoint 'state': {\"paid\": true}" in cli("runs", "state", "order/o-1").out


def test_no_state_that_cannot_be_believed(cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands) -> None:
    """Up to the record before the damage there is a state; from there on an error, never a guess."""
    finished(keeper)
    raw.put(hands.key(5), "no receipt")
    assert cli("runs", "state", "order/o-1", "--at", "4").code == 0
    for words in (("--at", "5"), ()):
        done = cli("runs", "state", "order/o-1", *words)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert "record 5 is corrupt" in done.err
    for words in ((), ("--at", "0"), ("--at", "3")):
        unknown = cli("runs", "state", "order/none", *words)
        assert (unknown.code, unknown.out) == (1, "")
        assert "nothing is recorded of it" in unknown.err
    assert cli("runs", "state", "order/o-1", "--at", "99").code == 1
    finished(keeper, "o-2")
    assert cli("runs", "state", "order/o-2", "--at", "99").code == 2


# ---------------------------------------------------------------- keygen


def test_keygen_keeps_the_private_half(cli: Any, tmp_path: Path) -> None:
    """A20: the private key goes into a new file of mode 0600 and nowhere else; the public one verifies what it signs."""
    file = tmp_path / "k.key"
    done = cli("runs", "keygen", "--out", str(file), "--id", "k9", endpoint="127.0.0.1:9")
    private = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert done.out.startswith("ed25519-public:k9:")
    assert private.split(":")[2] not in done.out + done.err
    again = cli("runs", "keygen", "--out", str(file))
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert file.read_text().strip() == private
    hmac = cli("runs", "keygen", "--kind", "hmac", "--out", str(tmp_path / "h.key"))
    assert (hmac.code, hmac.out) == (0, "")
