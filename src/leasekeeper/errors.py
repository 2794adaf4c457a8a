"""Every error that leasekeeper raises, as one tree split by who must act.

::

    LeasekeeperError
    ├── StopWork            the code that acts must stop
    │   ├── LeaseLost           authority is gone for good
    │   ├── StaleToken          a resource has seen a newer owner
    │   ├── RunHalted           an operator has halted the run
    │   ├── InDoubt             nobody can tell whether a step's effect happened
    │   └── Quarantined         the run was begun again too often
    ├── TryLater            nothing to mend; wait or try again
    │   ├── LeaseSuspended      authority is not provable just now
    │   ├── NotAcquired         somebody else owns the name
    │   ├── Unavailable         etcd cannot be reached or refuses for now
    │   │   └── OutOfSpace          etcd is full and takes no writes
    │   │       └── QuotaReserved       etcd is nearly full: the rest is for outcomes
    │   ├── OutcomeUnknown      a request was sent and its effect could not be read back
    │   └── StaleCheckpoint     somebody else has changed the checkpoint meanwhile
    └── FixIt               a person must change code, configuration or rights
        ├── Misuse              the API was called in a way that cannot work
        │   ├── StepBusy            one step in two threads or tasks at once
        │   └── StepsOpen           a run was left as if all was done, and steps have no outcome
        ├── ConfigError         a value is wrong; names the value and what would be right
        │   ├── NotSerialisable     a value that cannot be written as JSON
        │   └── ExportKept          the file that is there has more than the new export
        ├── AuthError           etcd refuses this user
        ├── StoreRewound        etcd's history went back, as after a restore from a backup
        ├── Conflict            somebody else has done what a step would do
        ├── Drift               what a step has done is true no more
        ├── ArgumentsChanged    a step was recorded with other arguments
        ├── InputChanged        a run was begun with another input
        ├── CorruptState        what is stored was damaged or changed
        ├── SchemaTooNew        what is stored is of a newer version than this program reads
        ├── SchemaUnknown       what is stored is of an older version than this program still reads
        ├── MigrationFailed     a migration does not work on what is stored
        ├── SigningKeyMissing   the key that signs a run's records is not here
        ├── BlobMissing         the bytes of a recorded result are gone
        ├── RunRewound          records of a run are gone from etcd
        ├── AnchorSkewed        a record's time cannot be right by an anchor's clock
        ├── RecordTooLarge      a record above its bound
        ├── RunTooLong          more records than a run may have
        ├── TransactionTooLarge more at once than etcd takes
        ├── IllegalTransition   a phase that may not follow the present one
        ├── RunFinished         a finished run takes no more steps
        └── RunPruned           a pruned run's id is not used again

Those that only a run can raise are in `leasekeeper.run_errors` and `leasekeeper.schema_errors`.

Contract of each: the class docstring's first line is the default message; what a program may want to branch on is an
attribute, not text; every error survives ``pickle`` with its attributes. Passwords, tokens of etcd's login and private
keys never appear in any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.records import Claim, Loss


# So much of a wrong value is shown in a message of one line.
SHOWN_MAX = 200


def shown(value: object) -> str:
    """A value as one line of text, whatever it is: some cannot even be printed."""
    try:
        text = repr(value).replace("\n", " ")
    except (Exception, LeasekeeperError):  # noqa: BLE001 - the mistake to tell of is another one
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _restore(cls: type[LeasekeeperError], args: tuple[Any, ...], state: dict[str, Any]) -> LeasekeeperError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class LeasekeeperError(BaseException):
    """Something went wrong in leasekeeper.

    Like StopWork not an Exception: see there. Whoever wants them all says ``except LeasekeeperError``.
    """

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])

    @property
    def message(self) -> str:
        """The text for people, without the attributes."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Callable[..., LeasekeeperError], tuple[Any, ...]]:
        return _restore, (type(self), self.args, self.__dict__)


# ---------------------------------------------------------------- stop


class StopWork(LeasekeeperError):
    """The work must stop: its authority is over.

    Like KeyboardInterrupt and asyncio.CancelledError not an Exception, so that a plain ``except Exception`` around one item
    of the work, or in a library in between, does not swallow it by accident and go on to the next item.
    """


class LeaseLost(StopWork):
    """The lease is lost; whatever it protected may now belong to somebody else.

    ``reason`` is one of ``expired revoked deleted gave_up forked closed released``; ``loss`` is the lease's own loss
    record (None for ``released``); ``in_doubt`` says that a critical block ended after authority had lapsed, so that
    its outcome must be checked at the resource.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        name: str = "",
        token: int = 0,
        reason: str = "",
        loss: Loss | None = None,
        in_doubt: bool = False,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.token = token
        self.reason = reason
        self.loss = loss
        self.in_doubt = in_doubt


class StaleToken(StopWork):
    """The resource has already accepted a newer owner; this write was refused.

    ``token`` is the refused one, ``highest`` and ``holder`` belong to the newest owner that the resource has seen.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        resource: str = "",
        token: int = 0,
        highest: int = 0,
        holder: str = "",
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.token = token
        self.highest = highest
        self.holder = holder


# ---------------------------------------------------------------- wait


class TryLater(LeasekeeperError, Exception):
    """Nothing has to be mended: wait, or try again."""


class LeaseSuspended(TryLater):
    """Authority cannot be proven just now; call wait() or try again.

    ``age_s`` is the age of the last proof, ``remaining_s`` what is left of proven authority, ``need_s`` what was asked.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        name: str = "",
        token: int = 0,
        age_s: float = 0.0,
        remaining_s: float = 0.0,
        need_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.token = token
        self.age_s = age_s
        self.remaining_s = remaining_s
        self.need_s = need_s


class NotAcquired(TryLater):
    """The name is owned by somebody else and the time to wait is over.

    ``owner`` is the owner's claim as it was last read (None when it could not be read, or when nobody owned the name any
    more), ``ahead`` how many claims stood in the queue when this one came (None when that was not told), ``waited_s`` how
    long it waited.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        name: str = "",
        owner: Claim | None = None,
        ahead: int | None = None,
        waited_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.owner = owner
        self.ahead = ahead
        self.waited_s = waited_s


class Unavailable(TryLater):
    """etcd cannot be reached, or cannot answer for now.

    Nothing that the failed call asked for has been left behind. ``endpoints`` were tried; ``detail`` is what the last
    one said.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        endpoints: tuple[str, ...] = (),
        operation: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.endpoints = endpoints
        self.operation = operation
        self.detail = detail


class OutOfSpace(Unavailable):
    """etcd is out of space and takes no writes: compact, defragment or give it a larger quota, then disarm the NOSPACE alarm."""


class OutcomeUnknown(TryLater):
    """A request was sent, no reply came, and its effect could not be read back in time.

    ``operation`` is what was asked. It may have happened, or happen yet; never assume either.
    """

    def __init__(self, message: str | None = None, *, operation: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.operation = operation
        self.detail = detail


# ---------------------------------------------------------------- fix


class FixIt(LeasekeeperError, Exception):
    """A person must change code, configuration or rights; trying again will not help."""


class Misuse(FixIt):
    """The library was called in a way that cannot work."""


class ConfigError(FixIt):
    """A value is wrong. ``field`` names it, ``value`` shows it, ``expected`` says what would be right."""

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str = "",
        value: object = None,
        expected: str = "",
    ) -> None:
        if message is None and field:
            message = f"{field}={shown(value)}: expected {expected}"
        super().__init__(message)
        self.field = field
        # Its text, not the object: it must pickle, and a value may be anything at all.
        self.value = value if isinstance(value, (str, int, float, type(None))) else shown(value)
        self.expected = expected


class AuthError(FixIt):
    """etcd refuses this user. ``user`` is who asked; ``denied`` tells missing rights from a failed login.

    At a resource, where there is no user of etcd: a grant is refused, because its signature is not right or because it is for
    something else; ``operation`` is then ``verify`` or ``accept``.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        user: str | None = None,
        denied: bool = False,
        operation: str = "",
    ) -> None:
        super().__init__(message)
        self.user = user
        self.denied = denied
        self.operation = operation


class StoreRewound(FixIt):
    """etcd's revision went back, as after a restore from a backup: run `leasekeeper epoch bump`.

    ``seen`` is the highest revision this client was shown, ``now`` the lower one. No name is acquired until the epoch
    has been raised, because tokens could repeat.
    """

    def __init__(self, message: str | None = None, *, seen: int = 0, now: int = 0) -> None:
        super().__init__(message)
        self.seen = seen
        self.now = now
