"""Asking the world before a lease is taken: where somebody has done already what a run is for, nobody needs to be kept waiting.

Only for a run that was never begun: once it was, its own record decides what is whose.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse
from leasekeeper.protocol.history import last
from leasekeeper.protocol.identity import Identity, the_identity
from leasekeeper.protocol.outcome import joined, seen_text
from leasekeeper.protocol.receipt import FIRST_PREV, Draft, Writer, read_receipt
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.run_errors import Conflict
from leasekeeper.run_records import Observed

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.runs.options import RunOptions
    from leasekeeper.runtime.core import Core

__all__ = ["aasked_first", "asked_first"]


class _Nobody:
    """The step that a preflight is told of before there is a lease."""

    key = ""
    attempt = 0
    idempotency_key = ""
    token = 0

    def __init__(self, run: str) -> None:
        self.run = run

    def headers(self) -> dict[str, str]:
        """None: nobody may act yet."""
        return {}

    def remaining(self) -> float:
        """None."""
        return 0.0


def asked_first(core: Core, options: RunOptions) -> None:
    """Raise Conflict, with a signed record, when the effect that was to be asked first is applied, and not by this run."""
    ask = _preflight(options)
    if ask is not None and core.run(last(core.ctx, RunKeys(core.ctx.keys, options.name), core.until())) is None:
        seen = _observed(ask())
        if seen.applied:
            identity = core.run(the_identity(core.ctx, core.until()))
            raise _conflict(core, options, identity, seen)


async def aasked_first(core: Core, options: RunOptions) -> None:
    """`asked_first` under asyncio; the preflight may be a coroutine function."""
    ask = _preflight(options)
    if ask is None:
        return
    if await core.arun(last(core.ctx, RunKeys(core.ctx.keys, options.name), core.until())) is None:
        found = ask()
        seen = _observed(await found if hasattr(found, "__await__") else found)
        if seen.applied:
            identity = await core.arun(the_identity(core.ctx, core.until()))
            raise _conflict(core, options, identity, seen)


def _preflight(options: RunOptions) -> Callable[[], Any] | None:
    if options.asked is None:
        return None
    effect, args = options.asked
    ask: Any = effect.asking(args)
    if ask is None:
        raise Misuse(f"ask_first: {effect.name} has no preflight: @{effect.name}.preflight")
    return lambda: ask(_Nobody(options.name.text))


def _observed(found: object) -> Observed:
    if not isinstance(found, Observed):
        raise Misuse(f"ask_first: the preflight returned {type(found).__name__}: expected an Observed")
    return found


def _conflict(core: Core, options: RunOptions, identity: Identity, seen: Observed) -> Conflict:
    assert options.asked is not None
    writer = Writer(
        workflow=options.name.workflow,
        id=options.name.id,
        gen=options.generation or 1,
        namespace_id=identity.uuid,
        token=0,
        claim="",
        holder=core.ctx.holder,
        life=os.urandom(16).hex(),
        key=options.signer,
    )
    draft = Draft("conflict", options.asked[0].name, joined(pre=seen_text(seen)), core.ctx.new_nonce())
    stored = writer.seal(draft, seq=1, prev=FIRST_PREV, at_ms=int(core.ctx.wall() * 1000))
    receipt = read_receipt(stored, "the record of the conflict")
    return Conflict(
        f"{options.asked[0].name} is applied already, and run {options.name} was never begun: nothing was done",
        run=options.name.text,
        step=options.asked[0].name,
        receipt=receipt,
    )
