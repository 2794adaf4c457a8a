"""What a keeper does with runs, under asyncio: own them, have them worked on, halt them, resolve what is in doubt.

Apart from the keeper's leases, which are all that many a program uses: of what runs are made, nothing is loaded before first use.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

from leasekeeper.protocol import halt as halts

if TYPE_CHECKING:
    from typing_extensions import Unpack  # for type checkers alone, which all know it; Python has it from 3.11 on

    from leasekeeper.aio import AsyncKeeper
    from leasekeeper.protocol.incarnation import Blobs
    from leasekeeper.protocol.prune import Pruned
    from leasekeeper.run_records import Receipt
    from leasekeeper.runs.aio import AsyncRun, AsyncRunning
    from leasekeeper.runs.aio_worker import AsyncWorker
    from leasekeeper.runs.anchor import Anchor
    from leasekeeper.runs.options import Asked, AskedOfWorker
    from leasekeeper.runtime.conduct import Passing
    from leasekeeper.runtime.core import Core
    from leasekeeper.signing import SigningKey

__all__ = ["AsyncKeepsRuns"]


class AsyncKeepsRuns:
    """The part of an `AsyncKeeper` that knows runs."""

    _core: Core
    _passing: Passing | None

    def run(
        self,
        workflow: str,
        *,
        id: str,  # noqa: A002 - the run's own word
        ttl: float | None = None,
        timeout: float | None = None,
        **asked: Unpack[Asked],
    ) -> AsyncRunning:
        """An async context manager that owns run ``workflow/id`` and begins or resumes it; see `Keeper.run`."""
        from leasekeeper.runs.aio import AsyncRunning
        from leasekeeper.runs.options import options

        self._core.want(workflow, ttl, timeout, "")
        return AsyncRunning(cast("AsyncKeeper", self), options(workflow, id=id, **asked), ttl, timeout, self._passing)

    def worker(
        self,
        resume: Mapping[str, Callable[[AsyncRun], Awaitable[object]]],
        *,
        concurrency: int = 1,
        every: float | str = 2.0,
        ttl: float | None = None,
        **asked: Unpack[AskedOfWorker],
    ) -> AsyncWorker:
        """A worker that goes on with unfinished runs whose lease is free, started by its ``run``; see `Keeper.worker`."""
        from leasekeeper.runs.aio_worker import AsyncWorker

        return AsyncWorker(
            cast("AsyncKeeper", self), resume, concurrency=concurrency, every=every, ttl=ttl, asked=asked
        )

    async def begin(
        self,
        workflow: str,
        *,
        id: str,  # noqa: A002 - the run's own word
        ttl: float | None = None,
        **asked: Unpack[Asked],
    ) -> bool:
        """Begin a run and leave it to a worker: whether it was new. See `Keeper.begin`."""
        from leasekeeper.runs.beginning import abegun
        from leasekeeper.runs.options import options

        return await abegun(cast("AsyncKeeper", self), options(workflow, id=id, **asked), ttl)

    async def halt(self, scope: str, reason: str = "", *, replace: bool = False) -> int:
        """Let no step begin in a scope from now on; see `Keeper.halt`."""
        revision: int = await self._core.arun(
            halts.halt(self._core.ctx, scope, reason, self._core.until(), replace=replace)
        )
        return revision

    async def unhalt(self, scope: str) -> bool:
        """End the halt of just this scope: whether there was one."""
        found: bool = await self._core.arun(halts.unhalt(self._core.ctx, scope, self._core.until()))
        return found

    async def halts(self) -> list[halts.Halt]:
        """The halts that stand."""
        found: list[halts.Halt] = await self._core.arun(halts.read_all(self._core.ctx, self._core.until()))
        return found

    @overload
    async def resolve(
        self,
        run: str | AsyncRun,
        step: str,
        *,
        applied: bool,
        evidence: object,
        result: object = None,
        signer: SigningKey | Literal["env"] | None = "env",
        blobs: Blobs | None = None,
    ) -> Receipt: ...

    @overload
    async def resolve(
        self,
        run: str | AsyncRun,
        step: None = None,
        *,
        applied: None = None,
        evidence: object,
        result: None = None,
        signer: SigningKey | Literal["env"] | None = "env",
        accept_rewind: Sequence[Anchor] = (),
    ) -> Receipt | None: ...

    async def resolve(
        self,
        run: str | AsyncRun,
        step: str | None = None,
        *,
        applied: bool | None = None,
        evidence: object,
        result: object = None,
        signer: SigningKey | Literal["env"] | None = "env",
        blobs: Blobs | None = None,
        accept_rewind: Sequence[Anchor] = (),
    ) -> Receipt | None:
        """Say, as an operator, that a step in doubt was applied, or that it was not; see `Keeper.resolve`."""
        from leasekeeper.runs.operator import acarried_out, resolving, run_keys, word

        core = self._core
        keys = run_keys(core.ctx.keys, run)
        said = word(step, applied=applied, evidence=evidence, result=result, signer=signer)
        return (
            await acarried_out(core, resolving(core, keys, said, accept_rewind, blobs=blobs), self._passing)
        ).receipt

    async def prune(self, run: str, *, exported: str | os.PathLike[str], damaged: bool = False) -> Pruned:
        """Remove a finished run from etcd, once it is certain that it was exported; see `Keeper.prune`."""
        from leasekeeper.protocol.prune import prune
        from leasekeeper.runs.exported import aread_exported
        from leasekeeper.runs.operator import run_keys

        core = self._core
        keys, held = run_keys(core.ctx.keys, run), await aread_exported(exported)
        pruned: Pruned = await core.arun(prune(core.ctx, keys, held, core.until(), damaged=damaged))
        return pruned
