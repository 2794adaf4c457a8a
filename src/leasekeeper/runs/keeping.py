"""What a keeper does with runs: own them, have them worked on, halt them, resolve what is in doubt.

Apart from the keeper's leases, which are all that many a program uses: of what runs are made, nothing is loaded before first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

from leasekeeper.protocol import halt as halts

if TYPE_CHECKING:
    from typing_extensions import Unpack  # for type checkers alone, which all know it; Python has it from 3.11 on

    from leasekeeper.keeper import Keeper
    from leasekeeper.protocol.incarnation import Blobs
    from leasekeeper.protocol.prune import Pruned
    from leasekeeper.run_records import Receipt
    from leasekeeper.runs.anchor import Anchor
    from leasekeeper.runs.options import Asked, AskedOfWorker
    from leasekeeper.runs.run import Run, Running
    from leasekeeper.runs.worker import Worker
    from leasekeeper.runtime.conduct import Passing
    from leasekeeper.runtime.core import Core
    from leasekeeper.signing import SigningKey

__all__ = ["KeepsRuns"]


class KeepsRuns:
    """The part of a `Keeper` that knows runs."""

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
    ) -> Running:
        """A context manager that owns run ``workflow/id`` and begins it, or goes on where its last owner left it.

        Leaving the block without an exception finishes the run, provided that it is known of each step how it ended. After an
        exception it can be resumed, here or elsewhere, by the same call: what was recorded is not done again. Steps under way
        are waited for then, up to 30 s. ``asked`` is described at `leasekeeper.runs.options.Asked`.

        Args:
            workflow: what kind of run it is.
            id: which one; both together name the lease ``run/<workflow>/<id>``.
            ttl: as for `acquire`.
            timeout: as for `acquire`.

        Raises:
            NotAcquired, Unavailable: as `acquire`, on entering.
            InputChanged, RunPruned, Quarantined, CorruptState, RunRewound, SigningKeyMissing: on entering; see
                `leasekeeper.run_errors`.
            StepsOpen, InDoubt: on leaving without an exception; the run is not finished.
        """
        from leasekeeper.runs.options import options
        from leasekeeper.runs.run import Running

        self._core.want(workflow, ttl, timeout, "")
        return Running(cast("Keeper", self), options(workflow, id=id, **asked), ttl, timeout, self._passing)

    def worker(
        self,
        resume: Mapping[str, Callable[[Run], object]],
        *,
        concurrency: int = 1,
        every: float | str = 2.0,
        ttl: float | None = None,
        **asked: Unpack[AskedOfWorker],
    ) -> Worker:
        """A worker that goes on with unfinished runs whose lease is free; started by ``with`` or by its ``run``.

        Args:
            resume: workflow to the function that is given the run: ``{"order": order_main}``. It gets on by what the run has
                recorded, and finishes the run by returning.
            concurrency: how many runs at once.
            every: seconds between two looks for free runs, more or less, at least 50 ms; each look is a read a workflow.
            ttl: as for `acquire`.
            asked: as for `run`, without what begins one; ``restarts`` is how often a run may be begun again without a step
                done; the next time it is quarantined.
        """
        from leasekeeper.runs.worker import Worker

        return Worker(cast("Keeper", self), resume, concurrency=concurrency, every=every, ttl=ttl, asked=asked)

    def begin(
        self,
        workflow: str,
        *,
        id: str,  # noqa: A002 - the run's own word
        ttl: float | None = None,
        **asked: Unpack[Asked],
    ) -> bool:
        """Begin a run and leave it to a worker: whether it was new.

        False, and nothing is changed, when it was begun before, or is just being begun; InputChanged when it was with other
        input; Conflict when what it would do is done (``ask_first``). ``asked`` is as for `run`.
        """
        from leasekeeper.runs.beginning import begun
        from leasekeeper.runs.options import options

        return begun(cast("Keeper", self), options(workflow, id=id, **asked), ttl)

    def halt(self, scope: str, reason: str = "", *, replace: bool = False) -> int:
        """Let no step begin in a scope from now on: the etcd revision after which none does.

        Steps that were begun may end, and what came of them is recorded.

        Args:
            scope: ``*``, a run as ``workflow/id``, or the beginning of such followed by ``*``.
            reason: told to whoever is stopped by it.
            replace: where the scope is halted already, put this reason, this holder and this time in the place of the ones
                that stand; by default those stay. One `unhalt` ends it in either case.
        """
        revision: int = self._core.run(halts.halt(self._core.ctx, scope, reason, self._core.until(), replace=replace))
        return revision

    def unhalt(self, scope: str) -> bool:
        """End the halt of just this scope: whether there was one."""
        found: bool = self._core.run(halts.unhalt(self._core.ctx, scope, self._core.until()))
        return found

    def halts(self) -> list[halts.Halt]:
        """The halts that stand."""
        found: list[halts.Halt] = self._core.run(halts.read_all(self._core.ctx, self._core.until()))
        return found

    @overload
    def resolve(
        self,
        run: str | Run,
        step: str,
        *,
        applied: bool,
        evidence: object,
        result: object = None,
        signer: SigningKey | Literal["env"] | None = "env",
        blobs: Blobs | None = None,
    ) -> Receipt: ...

    @overload
    def resolve(
        self,
        run: str | Run,
        step: None = None,
        *,
        applied: None = None,
        evidence: object,
        result: None = None,
        signer: SigningKey | Literal["env"] | None = "env",
        accept_rewind: Sequence[Anchor] = (),
    ) -> Receipt | None: ...

    def resolve(
        self,
        run: str | Run,
        step: str | None = None,
        *,
        applied: bool | None = None,
        evidence: object,
        result: object = None,
        signer: SigningKey | Literal["env"] | None = "env",
        blobs: Blobs | None = None,
        accept_rewind: Sequence[Anchor] = (),
    ) -> Receipt | None:
        """Say, as an operator, that a step in doubt was applied, or that it was not: the record of it.

        None, with ``accept_rewind`` alone: there is no run in etcd to record it in; the anchors keep the word.

        Applied: the step is done, with ``result``. Not applied: it will be called again, with the same idempotency key. A step
        that is done, and whose result could not be recorded or is lost, is given one by ``applied=True``; what is there
        stays.

        Args:
            run: ``workflow/id``.
            step: its key; None: lift the run's quarantine.
            applied: which of the two.
            evidence: what this rests on: text or JSON.
            result: JSON, what the step returns from now on; with ``applied=True``.
            signer: the key with which the run's records are signed; default: the environment's.
            blobs: where the step's large result was kept outside of etcd: seen to be lost there, it is replaced by ``result``.
            accept_rewind: anchors that remember more of the run than etcd has, since that was set back: what they remember
                beyond is given up for lost, and the run may go on. Look first what of it was applied: steps that were begun
                in what is lost will be begun again. Where nothing at all of the run is in etcd, nothing is written there, and the
                anchors remember nothing of it from then on: begin it again by the call that began it, with its input and in its
                generation, and its steps get the idempotency keys that they had, as long as the namespace's ``identity`` in etcd
                is the one it was begun in. Refused (Misuse) while somebody owns it, who may be beginning it; and, with nothing
                written, where etcd has all that they remember. Doubts, a quarantine and an end stay as the records have them.

        Raises:
            ConfigError: there is no such run or step, and no anchor remembers one.
            Misuse: there is nothing to resolve, or an owner who may be about to do the step.
            CorruptState: of the run, only pieces are there.
            SigningKeyMissing, RunPruned: nothing can be recorded.
            Unavailable: etcd or an anchor cannot be asked or told: say it again.
        """
        from leasekeeper.runs.operator import carried_out, resolving, run_keys, word

        core = self._core
        keys = run_keys(core.ctx.keys, run)
        said = word(step, applied=applied, evidence=evidence, result=result, signer=signer)
        return carried_out(core, resolving(core, keys, said, accept_rewind, blobs=blobs), self._passing).receipt

    def prune(self, run: str, *, exported: str | os.PathLike[str], damaged: bool = False) -> Pruned:
        """Remove a finished run from etcd, once it is certain that it was exported; a tombstone keeps its id.

        The export is verified, and must hold just the run as it is now. What was interrupted is gone on with by the same call.

        Args:
            run: ``workflow/id``.
            exported: the file that `leasekeeper.runs.exporting.export_run`, or ``leasekeeper runs export``, has written.
            damaged: True: also a run whose records in etcd were damaged since, and with them what shows how.

        Raises:
            ConfigError: there is no such run, or the file is no good export of all of it.
            Misuse: it is not finished, or somebody owns it.
            CorruptState: its records in etcd are not what was exported.
        """
        from leasekeeper.protocol.prune import prune
        from leasekeeper.runs.exported import read_exported
        from leasekeeper.runs.operator import run_keys

        core = self._core
        keys, held = run_keys(core.ctx.keys, run), read_exported(exported)
        pruned: Pruned = core.run(prune(core.ctx, keys, held, core.until(), damaged=damaged))
        return pruned
