"""The command line: `main` is the console script ``leasekeeper``.

One module per command, loaded when it is called for; `program` has the table. What all commands share: `command` (global options
before and after the command's name), `settings` (options, environment, and the keeper they make), `exits` (the one place that
makes an exit code and a line of text of an error), `output` (tables and JSON), `text` (what may reach a terminal).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line on ``args`` (default: those of the process) and exit with its status."""
    import signal
    import sys

    from leasekeeper.cli.standard import occupy, settle

    try:
        # Before anything that opens a file.
        occupy()
        from leasekeeper.cli.program import program

        program.main(args=args, prog_name="leasekeeper")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # so early that nothing had begun
    finally:
        # The exit code stands; another Ctrl-C must not change it while Python takes itself down.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        settle()
