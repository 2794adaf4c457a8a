"""What importing costs, each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from bench.measure import Row, interleaved

__all__ = ["imports"]


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def imports(rounds: int) -> Row:
    """`import leasekeeper` beside `import grpc`, and what the first use of Keeper adds."""
    times = interleaved(
        {
            "grpc": partial(_run, "import grpc"),
            "ours": partial(_run, "import leasekeeper"),
            "keeper": partial(_run, "from leasekeeper import Keeper"),
            "protobuf": partial(_run, "import grpc, google.protobuf.internal.builder"),
        },
        rounds,
        warm_up=1,
    )
    grpc_s = times["grpc"]
    return Row(
        "importing leasekeeper",
        times["ours"] / grpc_s,
        1.15,
        f"{times['ours'] * 1e3:.0f} ms beside {grpc_s * 1e3:.0f} ms for grpc; with Keeper loaded"
        f" {times['keeper'] / grpc_s:.2f} ×, of which grpc and protobuf alone are {times['protobuf'] / grpc_s:.2f} ×",
        figures=times,
    )
