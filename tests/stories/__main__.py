"""Write the story of a killed run anew, after what is stored or what is told has changed: `python -m tests.stories`.

Needs Linux. A real run, killed for real: its export, and what `runs explain` tells of it, beside this file. Look at the
difference before it is committed: what has changed must be what was meant to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from leasekeeper.testing import EtcdServer
from tests.commands import ROOT, call

HERE = Path(__file__).parent
NAMESPACE = "shop"
# The name of the machine that it is written on is nobody's business.
ELSEWHERE = ("unshare", "--uts", "--map-root-user", "sh", "-c", 'hostname box; exec "$@"', "sh")


def main() -> None:
    """Two lives, an export, a screen."""
    story, screen = HERE / "killed_run.jsonl", HERE / "killed_run.txt"
    with EtcdServer() as etcd:
        for holder in ("worker-1", "worker-2"):
            words = [*ELSEWHERE, sys.executable, "-m", "tests.programs.killed_run", etcd.endpoint, NAMESPACE, holder]
            subprocess.run(words, cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
        done = call(
            "runs", "export", "order/order-42", "--out", str(story), endpoint=etcd.endpoint, namespace=NAMESPACE
        )
        sys.stdout.write(done.out + done.err)
    told = call("runs", "explain", "--file", str(story)).out
    screen.write_text(told)
    sys.stdout.write(told)


if __name__ == "__main__":
    main()
