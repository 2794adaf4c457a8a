"""A process that puts large blobs, one after the other, until it is killed.

Options: path, seed, size. Reports ``putting`` before each and ``put`` after it, with its digest; the bytes follow from the seed.
"""

from __future__ import annotations

from itertools import count
from random import Random

from leasekeeper.runs.blobs import DirectoryBlobs, digest_of
from tests.programs.voice import options, say


def main() -> None:
    """Put, and report."""
    given = options()
    blobs = DirectoryBlobs(given["path"])
    chance = Random(given["seed"])
    for number in count():
        data = chance.randbytes(given["size"])
        say("putting", digest=digest_of(data), number=number)
        blobs.put(digest_of(data), data)
        say("put", digest=digest_of(data), number=number)


if __name__ == "__main__":
    main()
