"""Writes the golden files of a release: ``python -m tests.golden.write [--anew]``.

Without ``--anew`` it writes what is missing and touches nothing else: what was released never changes. With it, all is written
again; that is for formats that no release has written yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.golden import records
from tests.golden.formats import HERE

RELEASE = "0.1.0"


def files() -> dict[str, Callable[[], bytes]]:
    """The files by name, and what is in them."""
    found: dict[str, Callable[[], bytes]] = {}
    for name, one in records.FORMATS.items():
        found[f"{name}.json"] = lambda one=one: one.write() + b"\n"  # type: ignore[misc]
    for name, key in records.keys().items():
        found[f"records-{name}.jsonl"] = lambda key=key: b"".join(  # type: ignore[misc]
            each + b"\n" for each in records.receipts(key)
        )
        found[f"export-{name}.jsonl"] = lambda key=key: records.export(key)  # type: ignore[misc]
    found["anchor.jsonl"] = records.anchor
    found["names.json"] = lambda: records.names() + b"\n"
    return found


def main() -> None:
    """Write them."""
    for name, made in files().items():
        path = HERE / RELEASE / name
        if "--anew" in sys.argv or not path.exists():
            path.write_bytes(made())
            print(path.relative_to(HERE.parents[1]))


if __name__ == "__main__":
    main()
