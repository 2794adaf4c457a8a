"""Beginning a run for somebody else to do: it is recorded with its input, and left without an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import messages as m
from leasekeeper.protocol.meta import read_meta
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.receipt import digest
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.run_errors import InputChanged
from leasekeeper.runs.aio import AsyncRunning
from leasekeeper.runs.ask_first import aasked_first, asked_first
from leasekeeper.runs.run import Running

if TYPE_CHECKING:
    from leasekeeper.aio import AsyncKeeper
    from leasekeeper.keeper import Keeper
    from leasekeeper.runs.options import RunOptions

__all__ = ["abegun", "begun"]


def begun(keeper: Keeper, options: RunOptions, ttl: float | None) -> bool:
    """Begin a run unless it was begun, or somebody is just about it: whether it was done here.

    Raises Conflict when an effect that was to be asked first is applied.
    """
    if keeper._core.run(_is_there(keeper._core, options)):
        return False
    asked_first(keeper._core, options)
    lease = keeper.try_acquire(options.name.lease, ttl=ttl)
    if lease is None:
        return False
    try:
        # Somebody may have begun it meanwhile: opening it now would be one more life of it.
        if keeper._core.run(_is_there(keeper._core, options)):
            return False
        run = Running(keeper, options, ttl, None, keeper._passing, lease=lease).__enter__()
        run._tell_ended(None, left=True)
        return not run.resumed
    finally:
        lease.release()


async def abegun(keeper: AsyncKeeper, options: RunOptions, ttl: float | None) -> bool:
    """`begun` under asyncio."""
    if await keeper._core.arun(_is_there(keeper._core, options)):
        return False
    await aasked_first(keeper._core, options)
    lease = await keeper.try_acquire(options.name.lease, ttl=ttl)
    if lease is None:
        return False
    try:
        if await keeper._core.arun(_is_there(keeper._core, options)):
            return False
        run = await AsyncRunning(keeper, options, ttl, None, keeper._passing, lease=lease).__aenter__()
        run._tell_ended(None, left=True)
        return not run.resumed
    finally:
        await lease.release()


def _is_there(core: Any, options: RunOptions) -> Plan[bool]:
    """Whether it was begun before; InputChanged when that was with other input."""
    keys = RunKeys(core.ctx.keys, options.name)
    reply = yield from persist(TXN, m.read_only((m.get(keys.meta),)), now=core.now, until=core.until())
    kvs = m.range_kvs(reply, 0)
    if not kvs:
        return False
    meta = read_meta(kvs[0].value, keys.meta.decode())
    if options.input is not None and options.input != meta.input and options.generation in (None, meta.gen):
        raise InputChanged(run=keys.name.text, recorded=digest(meta.input), given=digest(options.input))
    return True
