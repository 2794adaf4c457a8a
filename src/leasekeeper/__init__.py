"""leasekeeper: many replicas run, one acts.

A TTL lease on a name in etcd, a fencing token that grows with every new owner, a heartbeat that proves the lease is still
good, and a gate that holds work back the moment that proof is missing::

    from leasekeeper import Keeper

    with Keeper("127.0.0.1:2379") as keeper:
        with keeper.lease("rotate-certs/prod", ttl=10) as lease:
            for host in hosts:
                lease.wait()
                api.rotate(host, fencing_token=lease.token, timeout=lease.remaining())

The names below are loaded when they are first used: a program that may never need a lease does not pay for grpc and
protobuf by importing this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from leasekeeper._version import __version__

if TYPE_CHECKING:
    from leasekeeper.aio import AsyncKeeper, AsyncLease
    from leasekeeper.errors import (
        AuthError,
        ConfigError,
        LeasekeeperError,
        LeaseLost,
        LeaseSuspended,
        Misuse,
        NotAcquired,
        OutcomeUnknown,
        OutOfSpace,
        StaleToken,
        StoreRewound,
        Unavailable,
    )
    from leasekeeper.keeper import Keeper, Lease
    from leasekeeper.protocol.authority import State
    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.prune import Pruned
    from leasekeeper.records import Claim, Loss
    from leasekeeper.run_errors import (
        AnchorSkewed,
        ArgumentsChanged,
        BlobMissing,
        Conflict,
        CorruptState,
        Drift,
        ExportKept,
        IllegalTransition,
        InDoubt,
        InputChanged,
        NotApplied,
        NotSerialisable,
        Quarantined,
        QuotaReserved,
        RecordTooLarge,
        RunFinished,
        RunHalted,
        RunPruned,
        RunRewound,
        RunTooLong,
        SigningKeyMissing,
        StaleCheckpoint,
        StepBusy,
        StepsOpen,
        TransactionTooLarge,
    )
    from leasekeeper.run_records import Answered, Observed, Receipt, StepView
    from leasekeeper.runs.aio import AsyncCheckpoint, AsyncPhase, AsyncRun
    from leasekeeper.runs.aio_worker import AsyncWorker
    from leasekeeper.runs.alert import Alert
    from leasekeeper.runs.effect import Effect, Step, effect
    from leasekeeper.runs.run import Checkpoint, Phase, Run
    from leasekeeper.runs.schema import migration
    from leasekeeper.runs.worker import Worker
    from leasekeeper.schema_errors import MigrationFailed, SchemaTooNew, SchemaUnknown
    from leasekeeper.timing import Timing
    from leasekeeper.wire.channel import TLS

__all__ = [
    "TLS",
    "Alert",
    "AnchorSkewed",
    "Answered",
    "ArgumentsChanged",
    "AsyncCheckpoint",
    "AsyncKeeper",
    "AsyncLease",
    "AsyncPhase",
    "AsyncRun",
    "AsyncWorker",
    "AuthError",
    "BlobMissing",
    "Checkpoint",
    "Claim",
    "ConfigError",
    "Conflict",
    "CorruptState",
    "Drift",
    "Effect",
    "ExportKept",
    "Halt",
    "IllegalTransition",
    "InDoubt",
    "InputChanged",
    "Keeper",
    "Lease",
    "LeaseLost",
    "LeaseSuspended",
    "LeasekeeperError",
    "Loss",
    "MigrationFailed",
    "Misuse",
    "NotAcquired",
    "NotApplied",
    "NotSerialisable",
    "Observed",
    "OutOfSpace",
    "OutcomeUnknown",
    "Phase",
    "Pruned",
    "Quarantined",
    "QuotaReserved",
    "Receipt",
    "RecordTooLarge",
    "Run",
    "RunFinished",
    "RunHalted",
    "RunPruned",
    "RunRewound",
    "RunTooLong",
    "SchemaTooNew",
    "SchemaUnknown",
    "SigningKeyMissing",
    "StaleCheckpoint",
    "StaleToken",
    "State",
    "Step",
    "StepBusy",
    "StepView",
    "StepsOpen",
    "StoreRewound",
    "Timing",
    "TransactionTooLarge",
    "Unavailable",
    "Worker",
    "__version__",
    "effect",
    "migration",
]

_HOME = {
    "TLS": "wire.channel",
    "AsyncKeeper": "aio",
    "AsyncLease": "aio",
    "Answered": "run_records",
    "Alert": "runs.alert",
    "AsyncCheckpoint": "runs.aio",
    "AsyncPhase": "runs.aio",
    "AsyncWorker": "runs.aio_worker",
    "Checkpoint": "runs.run",
    "Halt": "protocol.halt",
    "Phase": "runs.run",
    "Pruned": "protocol.prune",
    "StepView": "run_records",
    "Worker": "runs.worker",
    "AsyncRun": "runs.aio",
    "Observed": "run_records",
    "Receipt": "run_records",
    "Run": "runs.run",
    "Effect": "runs.effect",
    "Step": "runs.effect",
    "effect": "runs.effect",
    "migration": "runs.schema",
    "Claim": "records",
    "Keeper": "keeper",
    "Lease": "keeper",
    "Loss": "records",
    "State": "protocol.authority",
    "Timing": "timing",
    **dict.fromkeys(
        (
            "AnchorSkewed",
            "ArgumentsChanged",
            "BlobMissing",
            "Conflict",
            "CorruptState",
            "Drift",
            "ExportKept",
            "IllegalTransition",
            "InDoubt",
            "InputChanged",
            "NotApplied",
            "NotSerialisable",
            "Quarantined",
            "QuotaReserved",
            "RecordTooLarge",
            "RunFinished",
            "RunHalted",
            "RunPruned",
            "RunRewound",
            "RunTooLong",
            "SigningKeyMissing",
            "StaleCheckpoint",
            "StepBusy",
            "StepsOpen",
            "TransactionTooLarge",
        ),
        "run_errors",
    ),
    **dict.fromkeys(("MigrationFailed", "SchemaTooNew", "SchemaUnknown"), "schema_errors"),
}


if not TYPE_CHECKING:  # a type checker would take it for leave to ask for any name at all

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
