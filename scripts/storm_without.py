"""Take one guard out of a copy of leasekeeper, and see that a storm finds it missing.

    python scripts/storm_without.py                     all of them
    python scripts/storm_without.py gate run-halt       some

A harness that finds nothing proves nothing unless it finds this. The copy is made in a temporary directory; nothing here or in
what ships is ever switched. Each guard gets a few seeds of forty seconds; exits with 1 if one was not missed in any. Those whose
names begin with ``run-`` are guards of durable runs, and get storms over these.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ALWAYS = "m.not_created_at(b'\\0', -1)"  # a compare that is true
SOURCE = Path(__file__).resolve().parents[1] / "src"
SEEDS = (1, 2, 3, 4)
SECONDS = 40
TIMEOUT_S = 400


@dataclass(frozen=True)
class Guard:
    """What is taken out: in ``file`` the text ``old`` becomes ``new``. ``faults`` are those that need it.

    ``tells``: what a violation says that is about it and nothing else. ``also``: a second place that holds the same, beside which
    the first alone is not missed.
    """

    about: str
    file: str
    old: str
    new: str
    faults: tuple[str, ...]
    tells: tuple[str, ...] = ("",)
    workload: str = "lease"
    members: int = 3
    also: tuple[str, str] = ("", "")


GUARDS = {
    "gate": Guard(
        "the gate looks at the clock",
        "leasekeeper/runtime/held.py",
        "                and age < self._pause_s\n                and age + need <= self._gate_s\n",
        "",
        ("blackhole", "freeze"),
    ),
    "fence": Guard(
        "the resource refuses older owners",
        "leasekeeper/fencing.py",
        "    return token == highest.token and claim == highest.claim\n",
        "    return True\n",
        ("freeze",),
    ),
    "queue": Guard(
        "who is not first in line waits",
        "leasekeeper/protocol/place.py",
        "last[0].key, False, ",
        "last[0].key, True, ",
        ("kill",),
    ),
    "epoch": Guard(
        "a bump raises the epoch",
        "leasekeeper/protocol/epoch.py",
        "number = next_epoch(max(old.number, ctx.epoch.number), wall_s, above)\n",
        "number = max(old.number, ctx.epoch.number)\n",
        ("restore", "kill"),
    ),
    "own-key": Guard(
        "the own key is watched and read back",
        "leasekeeper/protocol/heartbeat.py",
        "    def key_gone(self, authority: Authority, now_s: float) -> list[Action]:\n",
        "    def key_gone(self, *_: object) -> list[Action]:\n        return []\n\n"
        "    def _key_gone(self, authority: Authority, now_s: float) -> list[Action]:\n",
        ("revoked", "broken"),
    ),
    "equal-token": Guard(
        "an equal token counts only for the same claim",
        "leasekeeper/fencing.py",
        "    return token == highest.token and claim == highest.claim\n",
        "    return token == highest.token\n",
        ("restore-unraised", "kill"),
        ("was accepted",),
    ),
    "run-fence": Guard(
        "what is added to a run compares the owner's claim",
        "leasekeeper/protocol/transaction.py",
        "    return m.created_at(log.mine.key, log.mine.create_revision)\n",
        f"    return {ALWAYS}\n",
        ("revoked", "broken", "late-replies"),
        ("its writer's claim was gone",),
        "runs",
        1,
    ),
    "run-outcome-fence": Guard(
        "an outcome compares it, too, not an intent alone",
        "leasekeeper/protocol/transaction.py",
        "    compares = [_owned(log), ",
        f"    compares = [_owned(log) if intent else {ALWAYS}, ",
        ("revoked", "broken", "late-replies"),
        ("its writer's claim was gone",),
        "runs",
        1,
    ),
    "run-head": Guard(
        "what is added to a run compares the head, and that no record is there",
        "leasekeeper/protocol/transaction.py",
        "    request.compare[HEAD_COMPARE].value = log.head.stored()\n",
        f"    request.compare[HEAD_COMPARE].CopyFrom({ALWAYS})\n",
        ("fails",),
        ("cannot be verified", "was written 2 times"),
        "runs",
        1,
        ("    request.compare.append(m.absent(where))\n", ""),
    ),
    "run-epoch": Guard(
        "what is added to a run compares the epoch",
        "leasekeeper/protocol/transaction.py",
        "    return m.epoch_is(log.ctx.keys.epoch, log.epoch)\n",
        f"    return {ALWAYS}\n",
        ("epoch-raised",),
        ("and epoch",),
        "runs",
        1,
    ),
    "run-gate": Guard(
        "the gate is asked before a call",
        "leasekeeper/runtime/conduct.py",
        "        held.check(need_s)\n",
        "        pass\n",
        ("freeze", "blackhole"),
        ("passed its gate",),
        "runs",
        1,
    ),
    "run-preflight": Guard(
        "the outside world is asked before a call",
        "leasekeeper/protocol/act.py",
        "    if calls.preflight is None:\n        return None, asked_s\n",
        "    if calls is not None:\n        return None, asked_s\n",
        ("compaction",),
        ("although somebody else had sent it",),
        "runs",
        1,
    ),
    "run-verify": Guard(
        "an outcome is one whose postcondition holds",
        "leasekeeper/protocol/act.py",
        "    return ok is True\n",
        "    return True\n",
        ("fails",),
        ("the ledger does not have it",),
        "runs",
        1,
    ),
    "run-key": Guard(
        "an attempt is made with the key of the first",
        "leasekeeper/runs/effect.py",
        "        self.idempotency_key = pointer.idem\n",
        "        self.idempotency_key = f'{pointer.idem}-{pointer.attempts}'\n",
        ("kill", "lost-replies", "fails-after"),
        ("with several keys", "with a key that no intent has", "times, in requests"),
        "runs",
        1,
    ),
    "run-halt": Guard(
        "an intent compares that there is no halt",
        "leasekeeper/protocol/transaction.py",
        "        compares.append(halts.none_at_all(prefix))\n",
        f"        compares.append({ALWAYS})\n",
        ("halt-all", "halt-some"),
        ("was halted at",),
        "runs",
        1,
    ),
    "run-alert": Guard(
        "what was told is not told again",
        "leasekeeper/protocol/stop.py",
        "    return lambda head: head.told(step)\n",
        "    return lambda head: head\n",
        ("fails", "fails-after"),
        ("was told",),
        "runs",
        1,
    ),
}


def without(guard: Guard, source: Path) -> None:
    """Take the guard out of the copy in ``source``; ValueError when it is not where it is looked for."""
    path = source / guard.file
    text = path.read_text(encoding="utf-8")
    if text.count(guard.old) != 1:
        raise ValueError(f"{guard.file} does not have this once: {guard.old!r}")
    text = text.replace(guard.old, guard.new)
    if guard.also[0]:
        if text.count(guard.also[0]) != 1:
            raise ValueError(f"{guard.file} does not have this once: {guard.also[0]!r}")
        text = text.replace(*guard.also)
    path.write_text(text, encoding="utf-8")


def storm(source: Path, seed: int, guard: Guard) -> list[str]:
    """The violations of one storm with the code in ``source`` that tell of the guard."""
    command = [sys.executable, "-m", "leasekeeper", "chaos", "--seed", str(seed), "--seconds", str(SECONDS)]
    command += ["--workload", guard.workload, "--members", str(guard.members)]
    command += [word for fault in guard.faults for word in ("--fault", fault)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        command, env=environment, cwd=source, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-500:]}")
    violations = [line for line in done.stdout.splitlines() if line.startswith("VIOLATED")]
    return [line for line in violations if any(words in line for words in guard.tells)]


def missed(name: str, guard: Guard) -> bool:
    """Whether some storm found the guard missing; says what was found."""
    with tempfile.TemporaryDirectory(prefix="leasekeeper-without-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source)
        without(guard, source)
        for seed in SEEDS:
            found = storm(source, seed, guard)
            print(
                f"without {name} ({guard.about}), seed {seed}: {len(found)} violations",
                *found[:1],
                sep="\n  ",
                flush=True,
            )
            if found:
                return True
    return False


def main() -> None:
    """Try the guards that are named, or all."""
    names = sys.argv[1:] or list(GUARDS)
    found = [missed(name, GUARDS[name]) for name in names]
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
