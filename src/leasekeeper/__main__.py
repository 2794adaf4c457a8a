"""``python -m leasekeeper``: the command line."""

from __future__ import annotations

from leasekeeper.cli import main

if __name__ == "__main__":
    main()
