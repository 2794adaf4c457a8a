"""`runs verify` of files: exports by themselves, on a machine without etcd, and anchors of other runs, changed, or overruled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.runs.anchor import FileAnchor
from tests.chains import needs_cryptography
from tests.commands import ROOT, call
from tests.told_runs import RUN, Boom, Hands, fine, finished, heads_file, signer

pytestmark = needs_cryptography


def offline(*words: str) -> subprocess.CompletedProcess[str]:
    """A verifier on a machine that has the files and no etcd, no key, and no variable of ours."""
    code = (
        "import sys\n"
        "from leasekeeper.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert 'leasekeeper.keeper' not in sys.modules and 'grpc' not in sys.modules"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, "runs", "verify", *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_an_export_verifies_with_public_keys_alone(
    cli: Any, keeper: Keeper, keys: str, anchor: FileAnchor, tmp_path: Path
) -> None:
    """A20: no etcd, no private key, no network library: 0; one byte changed anywhere in the file: 1."""
    finished(keeper, signer=signer(), anchors=[anchor])
    out = tmp_path / "o.jsonl"
    private = "ed25519:k1:azFrMWsxazFrMWsxazFrMWsxazFrMWsxazFrMWsxazE="
    assert cli("runs", "export", RUN, "--out", str(out), env={"LEASEKEEPER_SIGNING_KEY": private}).code == 0
    good = offline("--file", str(out), "--keys", keys, "--anchor", heads_file(anchor))
    assert (good.returncode, good.stderr) == (0, "")
    assert "attested    up to record 8, by k1" in good.stdout
    data = out.read_bytes()
    touched = tmp_path / "touched.jsonl"
    for at in range(20, len(data), len(data) // 40):
        touched.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        done = call("runs", "verify", "--file", str(touched), "--keys", keys)
        assert done.code == 1, (at, done.out)
        assert done.err == ""


@pytest.mark.parametrize("lines", [slice(0, -1), slice(0, -3), slice(0, 4), slice(1, None), slice(0, 0)])
def test_a_file_that_was_cut_is_bad(cli: Any, keeper: Keeper, tmp_path: Path, lines: slice) -> None:
    """Without its footer, its last records, its header, or anything at all it does not verify: 1, never an error."""
    finished(keeper)
    out = tmp_path / "o.jsonl"
    assert cli("runs", "export", RUN, "--out", str(out)).code == 0
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[lines]))
    done = call("runs", "verify", "--file", str(out), "-o", "json")
    assert (done.code, done.json["ok"], done.err) == (1, False, "")


def test_anchors_that_say_nothing_of_it_or_are_damaged(
    cli: Any, keeper: Keeper, anchor: FileAnchor, tmp_path: Path
) -> None:
    """An anchor of other runs confirms nothing and disturbs nothing; one that was changed is refused; so is a foreign export."""
    finished(keeper)
    finished(keeper, "o-2", anchors=[anchor])
    file = Path(heads_file(anchor))
    done = cli("runs", "verify", RUN, "--anchor", str(file), "-o", "json")
    assert (done.code, done.json["anchored"]) == (0, None)
    told = cli("runs", "verify", RUN, "--anchor", str(file))
    assert "anchored    nothing: what was given remembers no record of this run" in told.out
    file.write_text(file.read_text().replace('"seq":3', '"seq":4', 1))
    refused = cli("runs", "verify", RUN, "--anchor", str(file))
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert f"{file}, anchor line 1: is not as it was written: find out by whom" in refused.err
    other = str(tmp_path / "o2.jsonl")
    assert cli("runs", "export", "order/o-2", "--out", other).code == 0
    foreign = cli("runs", "verify", RUN, "--export", other)
    assert (foreign.code, foreign.err.count("\n")) == (2, 1)
    assert "an export of order/o-1" in foreign.err


def test_an_accepted_rewind_is_no_fault(cli: Any, keeper: Keeper, hands: Hands, anchor: FileAnchor) -> None:
    """What an operator has given up for lost by `resolve --accept-rewind` is held against the run no longer."""
    with pytest.raises(Boom):
        _broken_off(keeper, anchor)
    first = hands.raw.keys(f"{hands.root}head")[0].create_revision
    old = hands.raw.keys(f"{hands.root}head", revision=first + 2)[0].value.decode()
    seq = int(old.split('"seq":')[1].split(",")[0])
    hands.set_back(seq, old)
    hands.raw.delete(f"{hands.root}step/s-1")
    hands.raw.delete(f"{hands.root}step/s-2")
    file = heads_file(anchor)
    assert cli("runs", "verify", RUN, "--anchor", file).code == 1
    done = cli("runs", "resolve", RUN, "--accept-rewind", file, "--evidence", "the restore of Monday")
    assert done.code == 0, done.err
    assert "given up for lost" in done.out
    after = cli("runs", "verify", RUN, "--anchor", file, "-o", "json")
    assert (after.code, after.json["anchored"]) == (0, seq + 1), after.out


def _broken_off(keeper: Keeper, anchor: FileAnchor) -> None:
    with keeper.run("order", id="o-1", ttl=5, anchors=[anchor]) as run:
        for number in range(3):
            run.do(f"s-{number}", fine, number)
        raise Boom
