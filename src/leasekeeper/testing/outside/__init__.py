"""An outside world for tests of programs that act on one: what they did can be counted, and everything can go wrong.

`OutsideWorld` is a process with a few services over HTTP, of the kinds that matter to somebody who may be killed between a
request and its answer:

=================================  ==================================================================================
``POST /charges``                  payments that honour an ``Idempotency-Key``; ``GET /charges?order=``, ``/charges/ID``
``POST /till/charges``             the same without: asked twice, it charges twice
``POST /mails``                    mail, of which nothing is taken back; ``GET /mails?to=&subject=``
``PUT /configs/NAME``              documents behind a fence (``Fencing-Token``, ``Fencing-Claim``); ``GET`` the current one;
                                   ``/certificates/NAME`` and ``/secrets/NAME`` are the same
``POST /v1/chat/completions``      a language model's place: an answer that follows from the request, billed each time
``GET /__counts``                  how often each was asked for, and happened; ``/__ledger``: every line of it
=================================  ==================================================================================

All that comes and all that happens is written to a ledger by the world itself (`Entry`), which is what a test compares the
actor's own story with; if that is a run, `disagreements` does it. A `Trouble` makes it slow, forgetful, or lose a reply::

    with OutsideWorld() as world:
        world.trouble(Trouble("lose_reply", "payments.charge"))
        ...  # what your program does when it hears nothing of its charge
        assert len(world.applied("payments.charge", "order-42")) == 1

These services stand in for other people's. The etcd of a test is always a real one, see `leasekeeper.testing`.
"""

from __future__ import annotations

from leasekeeper.testing.outside.agreement import disagreements, records_of
from leasekeeper.testing.outside.call import Refused, call
from leasekeeper.testing.outside.ledger import Count, Entry
from leasekeeper.testing.outside.troubles import Trouble, TroubleKind
from leasekeeper.testing.outside.world import OutsideView, OutsideWorld

__all__ = [
    "Count",
    "Entry",
    "OutsideView",
    "OutsideWorld",
    "Refused",
    "Trouble",
    "TroubleKind",
    "call",
    "disagreements",
    "records_of",
]
