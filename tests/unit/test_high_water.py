"""The highest revision seen: what a store that went back is known by, until its epoch is raised."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import TXN, Call, Cause, Fault
from leasekeeper.wire.auth import Login
from leasekeeper.wire.channel import Channels, parse_endpoints
from leasekeeper.wire.engine import Engine, Exchange

ENDPOINT = "127.0.0.1:1"


def make_engine() -> Engine:
    """An engine that connects to nothing: the tests answer in the server's place."""

    def now() -> float:
        return 0.0

    return Engine(Channels(parse_endpoints(ENDPOINT)), Login(None, None, now), (), now)


def send(engine: Engine) -> Exchange:
    """A call that was sent and is not answered yet."""
    exchange = engine.exchange(Call(TXN, pb.TxnRequest(), strict=True))
    next(exchange)
    return exchange


def answer(exchange: Exchange, revision: int) -> Any:
    """The answer comes: what is made of it."""
    with pytest.raises((StopIteration, Fault)) as ended:
        exchange.send(pb.TxnResponse(header=pb.ResponseHeader(revision=revision)))
    return ended.value.value if isinstance(ended.value, StopIteration) else ended.value


def test_a_lower_revision_than_one_seen_before_is_a_store_that_went_back() -> None:
    """A30: what was sent after a higher revision was seen must not be answered with a lower one."""
    engine = make_engine()
    answer(send(engine), 100)
    fault = answer(send(engine), 99)
    assert isinstance(fault, Fault)
    assert (fault.cause, fault.seen, fault.now) == (Cause.REWOUND, 100, 99)
    engine.close()


def test_answers_that_overtake_each_other_are_no_store_that_went_back() -> None:
    """Only what was seen before a call was sent counts against its answer."""
    engine = make_engine()
    slow, fast = send(engine), send(engine)
    answer(fast, 100)
    assert answer(slow, 99).header.revision == 99
    engine.close()


def test_an_answer_from_before_a_restore_counts_no_more_once_the_epoch_was_raised() -> None:
    """A30: a very late answer of the old store does not make the new one look as if it had gone back again."""
    engine = make_engine()
    late = send(engine)
    engine.accept_rewind()
    assert answer(late, 1000).header.revision == 1000
    assert answer(send(engine), 50).header.revision == 50
    assert answer(send(engine), 51).header.revision == 51
    engine.close()


def test_a_call_from_before_the_epoch_was_raised_is_not_measured_by_the_old_store() -> None:
    """A30: what was on its way while the epoch was raised may show the new store's lower revision, and raises no old mark."""
    engine = make_engine()
    answer(send(engine), 1000)
    on_its_way = send(engine)
    engine.accept_rewind()
    assert answer(on_its_way, 50).header.revision == 50
    answer(send(engine), 60)
    assert answer(send(engine), 59).cause is Cause.REWOUND
    engine.close()
