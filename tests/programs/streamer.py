"""A process that asks a model for an answer in pieces, as a memo of a run, to be killed in the middle of it.

Options: endpoint, namespace, url (of the outside world), ttl. Reports ``heard`` with each piece, and ``done``.
"""

from __future__ import annotations

from leasekeeper import Keeper
from tests.programs.voice import options, say
from tests.streams import ABOUT, PROMPT, asking


def main() -> None:
    """Do the run."""
    told = options()
    ask = asking(told["url"], lambda so_far: say("heard", so_far=so_far))
    keeper = Keeper(told["endpoint"], namespace=told["namespace"])
    with keeper, keeper.run("story", id="1", ttl=told["ttl"], timeout=30) as run:
        say("done", answer=run.memo("tell", ask, PROMPT, about=ABOUT))


if __name__ == "__main__":
    main()
