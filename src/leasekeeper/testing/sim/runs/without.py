"""Guards of runs taken out, one at a time, to show that each is needed and that the simulator would notice.

As for leases (`leasekeeper.testing.sim.without`): a function stands in the guard's place, for the thread that runs the world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import act, append, closing, halt, step, transaction
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.doubt import Verdict
from leasekeeper.testing.sim.runs import conducting
from leasekeeper.testing.sim.without import Guard

if TYPE_CHECKING:
    from leasekeeper.protocol.conduct import Conduct
    from leasekeeper.protocol.incarnation import Incarnation
    from leasekeeper.protocol.log import Built, Log

__all__ = ["RUN_GUARDS"]

Instead = Callable[..., Any]


def _holds_always(key: bytes) -> pb.Compare:
    return pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.VERSION, key=key, version=-1)


def _any_owner(_: Instead, log: Log) -> pb.Compare:
    return _holds_always(log.mine.key)


def _any_epoch(_: Instead, log: Log) -> pb.Compare:
    return _holds_always(log.ctx.keys.epoch)


def _any_head(begun: Instead, log: Log, *args: Any, **named: Any) -> pb.TxnRequest:
    request: pb.TxnRequest = begun(log, *args, **named)
    request.compare[transaction.HEAD_COMPARE].CopyFrom(_holds_always(log.keys.head))
    return request


def _under_any_halt(_: Instead, prefix: bytes, *__: Any) -> pb.Compare:
    return _holds_always(prefix)


def _over_what_is_there(add: Instead, log: Log, built: Built, *args: Any) -> Any:
    at = len(built.request.compare)
    head = add(log, built, *args)
    built.request.compare[at].CopyFrom(_holds_always(log.keys.record(built.first)))
    return head


def _unasked(_: Instead, life: Incarnation, *__: Any) -> Conduct[tuple[None, float]]:
    yield from ()
    return None, life.log.ctx.now()


def _another_key(_: Instead, life: Incarnation, __: str) -> str:
    return life.log.ctx.new_nonce()


def _again_whatever(*_: Any, **__: Any) -> tuple[Verdict, str]:
    return Verdict.CALL, "it is called again, come what may"


def _ageless(decide: Instead, *args: Any, **named: Any) -> Any:
    return decide(*args, **{**named, "age_s": 0.0})


def _not_recognised(sort_out: Instead, log: Log, built: Built, before: Any, reply: pb.TxnResponse) -> Any:
    blind = pb.TxnResponse.FromString(reply.SerializeToString())
    blind.responses[transaction.RECORD].response_range.ClearField("kvs")
    return sort_out(log, built, before, blind)


def _yes(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> list[str]:
    return []


RUN_GUARDS: dict[str, Guard] = {
    guard.name: guard
    for guard in (
        Guard(
            "run-fence",
            "whatever is added to a run compares that its owner's claim stands as it was created",
            "processes",
            ((transaction, "_owned", _any_owner),),
        ),
        Guard(
            "run-head",
            "whatever is added to a run compares the head by its bytes: no hole, also after a restore",
            "careless",
            ((transaction, "_begun", _any_head),),
        ),
        Guard(
            "run-epoch",
            "whatever is added to a run compares the epoch: nobody goes on under one that was raised",
            "operators",
            ((transaction, "_same_epoch", _any_epoch),),
        ),
        Guard(
            "run-halt",
            "an intent compares that no halt covers the run",
            "operators",
            ((halt, "none_at_all", _under_any_halt), (halt, "no_others", _under_any_halt)),
        ),
        Guard(
            "create-only",
            "a record is put only where none is, whatever the head says",
            "tampered",
            ((transaction, "_add", _over_what_is_there),),
        ),
        Guard(
            "run-gate",
            "the last thing before a call is that authority is proven",
            "processes",
            ((conducting, "passes", _yes),),
        ),
        Guard(
            "preflight",
            "the outside world is asked before a call, every time",
            "strangers",
            ((step, "observe", _unasked), (act, "observe", _unasked)),
        ),
        Guard(
            "preflight-age",
            "what the preflight saw counts for a while only",
            "strangers",
            ((act, "fresh", _yes),),
        ),
        Guard(
            "verify",
            "what an effect returned is an outcome only once its postcondition holds",
            "outside",
            ((act, "believes", _yes),),
        ),
        Guard(
            "one-key",
            "a step's idempotency key comes from what never changes, not from chance or time",
            "restores",
            ((step, "the_key", _another_key),),
        ),
        Guard(
            "doubt",
            "whoever finds an intent without an outcome asks whether it may be called again",
            "strikes",
            ((step, "decide", _again_whatever),),
        ),
        Guard(
            "key-age",
            "a call is repeated by its key only while the callee surely remembers that",
            "outages",
            ((step, "decide", _ageless),),
        ),
        Guard(
            "arguments",
            "a step's key stands for one set of arguments",
            "strikes",
            ((step, "same_arguments", _yes),),
        ),
        Guard(
            "read-back",
            "a lost reply is told by the nonce of one's own record",
            "network",
            ((append, "sort_out", _not_recognised),),
        ),
        Guard(
            "open-steps",
            "a run is not finished while nobody knows how a step of it ended, and it may not be repeated",
            "outside",
            ((closing, "left_open", _nothing),),
        ),
    )
}
