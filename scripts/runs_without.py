"""Take one guard of runs out of a copy of leasekeeper, and see that the tests of crashes find it missing.

    python scripts/runs_without.py            all of them
    python scripts/runs_without.py gate       one

Tests that find nothing prove nothing unless they find this. The copy is made in a temporary directory; nothing here or in what
ships is ever switched. Of each guard the tests named beside it are run, which takes some seconds; exits with 1 if one was not
missed by any, or if they fail with the guard in its place (``nothing``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
TIMEOUT_S = 400
ALWAYS = "m.not_created_at(b'\\0', -1)"  # a compare that is true


@dataclass(frozen=True)
class Guard:
    """What is taken out: in ``file`` the text ``old`` becomes ``new``. ``tests`` is what of the tests of crashes needs it."""

    about: str
    file: str
    old: str
    new: str
    tests: str


GUARDS = {
    "fence": Guard(
        "what is added compares the owner's claim",
        "leasekeeper/protocol/transaction.py",
        "    return m.created_at(log.mine.key, log.mine.create_revision)\n",
        f"    return {ALWAYS}\n",
        "claim_is_compared or between_the_check",
    ),
    "head": Guard(
        "what is added compares the head",
        "leasekeeper/protocol/transaction.py",
        "    request.compare[HEAD_COMPARE].value = log.head.stored()\n",
        f"    request.compare[HEAD_COMPARE].CopyFrom({ALWAYS})\n",
        "head_is_compared",
    ),
    "epoch": Guard(
        "what is added compares the epoch",
        "leasekeeper/protocol/transaction.py",
        "    return m.epoch_is(log.ctx.keys.epoch, log.epoch)\n",
        f"    return {ALWAYS}\n",
        "epoch_is_compared",
    ),
    "halts": Guard(
        "an intent compares that there is no halt",
        "leasekeeper/protocol/transaction.py",
        "        compares.append(halts.none_at_all(prefix))\n",
        f"        compares.append({ALWAYS})\n",
        "halts_are_compared",
    ),
    "create-only": Guard(
        "a record is put where none is",
        "leasekeeper/protocol/transaction.py",
        "    request.compare.append(m.absent(where))\n",
        f"    request.compare.append({ALWAYS})\n",
        "record_is_only_created",
    ),
    "step": Guard(
        "what is added compares where its step stands",
        "leasekeeper/protocol/transaction.py",
        "        request.compare.append(m.unchanged(key, revision))\n",
        f"        request.compare.append({ALWAYS})\n",
        "where_a_step_stands",
    ),
    "read-back": Guard(
        "a refused transaction looks whether it was an earlier copy that went through",
        "leasekeeper/protocol/refused.py",
        "record[0].value == sent.stored[0]:\n",
        "record[0].value == b'':\n",
        "lost_answer_is_read_back or three_times",
    ),
    "read-back-first": Guard(
        "who begins a run looks whether it was an earlier copy of the same that did",
        "leasekeeper/protocol/opening.py",
        "first[0].value == stored",
        "first[0].value == b''",
        "lost_answer_is_read_back and opened",
    ),
    "gate": Guard(
        "the gate is asked before the call",
        "leasekeeper/runtime/conduct.py",
        "        held.check(need_s)\n",
        "        pass\n",
        "gate_is_asked",
    ),
    "preflight": Guard(
        "the outside world is asked about an intent without outcome",
        "leasekeeper/protocol/act.py",
        "    if calls.preflight is None:\n        return None, asked_s\n",
        "    if calls is not None:\n        return None, asked_s\n",
        "killed_at_every_point and probe",
    ),
    "preflight-age": Guard(
        "what a preflight saw counts for a while only",
        "leasekeeper/protocol/act.py",
        "    return age_s <= max_age_s\n",
        "    return True\n",
        "preflight_is_asked_again",
    ),
    "verify": Guard(
        "an outcome is one whose postcondition holds",
        "leasekeeper/protocol/act.py",
        "    return ok is True\n",
        "    return True\n",
        "only_a_postcondition or still_holds",
    ),
    "doubt": Guard(
        "who has no help repeats nothing",
        "leasekeeper/protocol/doubt.py",
        '        return Verdict.STOP, f"{_unseen(observed)}, and the callee is not declared',
        '        return Verdict.CALL, f"{_unseen(observed)}, and the callee is not declared',
        "killed_at_every_point and bare",
    ),
    "key-age": Guard(
        "a key is repeated while the callee surely remembers it",
        "leasekeeper/protocol/doubt.py",
        "    if not -key_ttl_s * (1 - KEY_AGE_MAX) <= age_s < key_ttl_s * KEY_AGE_MAX:\n",
        "    if not age_s < 10**9:\n",
        "key_that_may_be_forgotten",
    ),
    "key-kept": Guard(
        "an attempt is made with the key of the first",
        "leasekeeper/runs/effect.py",
        "        self.idempotency_key = pointer.idem\n",
        "        self.idempotency_key = f'{pointer.idem}-{pointer.attempts}'\n",
        "killed_at_every_point and dedupes",
    ),
    "key-same": Guard(
        "a key follows from what never changes",
        "leasekeeper/protocol/incarnation.py",
        "life.log.head.gen, step)\n",
        "life.log.head.gen, step + life.log.ctx.new_nonce())\n",
        "same_key_after_a_restore",
    ),
    "fence-rule": Guard(
        "a resource refuses older owners",
        "leasekeeper/fencing.py",
        "    return token == highest.token and claim == highest.claim\n",
        "    return True\n",
        "frozen_behind_the_gate",
    ),
    "equal-token": Guard(
        "a resource tells two claims of one token apart",
        "leasekeeper/fencing.py",
        "    return token == highest.token and claim == highest.claim\n",
        "    return token == highest.token\n",
        "equal_tokens",
    ),
    "told-once": Guard(
        "that somebody was told is recorded",
        "leasekeeper/protocol/stop.py",
        "    return lambda head: head.told(step)\n",
        "    return lambda head: head\n",
        "killed_at_every_point and bare",
    ),
    "restarts": Guard(
        "lives without a step done have an end",
        "leasekeeper/protocol/opening.py",
        "    if restarts > opening.budget:\n",
        "    if restarts > 10**6:\n",
        "is_quarantined",
    ),
}


def without(guard: Guard, source: Path) -> None:
    """Take the guard out of the copy in ``source``; ValueError when it is not where it is looked for."""
    path = source / guard.file
    text = path.read_text(encoding="utf-8")
    if text.count(guard.old) != 1:
        raise ValueError(f"{guard.file} does not have this once: {guard.old!r}")
    path.write_text(text.replace(guard.old, guard.new), encoding="utf-8")


def failures(source: Path, tests: str) -> list[str]:
    """The tests of crashes that fail with the code in ``source``."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-m", "not slow", "-k", tests]
    command += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/process").glob("test_crash_*.py"))
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]


def missed(name: str) -> bool:
    """Whether the tests found the guard missing, or nothing when there is nothing missing; says what was found."""
    with tempfile.TemporaryDirectory(prefix="leasekeeper-without-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        guard = GUARDS.get(name)
        if guard is not None:
            without(guard, source)
        tests = " or ".join(sorted({f"({each.tests})" for each in GUARDS.values()})) if guard is None else guard.tests
        found = failures(source, tests)
    what = "nothing taken out" if guard is None else f"without {name} ({guard.about})"
    print(f"{what}: {len(found)} tests fail", *found, sep="\n  ", flush=True)
    return bool(found) is (guard is not None)


def main() -> None:
    """Try the guards that are named, or nothing and then all."""
    names = sys.argv[1:] or ["nothing", *GUARDS]
    found = [missed(name) for name in names]
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
