"""The keys of runs, all under ``leasekeeper/<namespace>/``; with `keys`, the only place that spells one.

=============================================  =================================================================
``identity``                                   the namespace's own number and secret; made once
``run/<workflow>/<id>/meta``                   what the run was begun with; made once
``run/<workflow>/<id>/head``                   where the run stands: the number and hash of its last record
``run/<workflow>/<id>/r/<12 digits>``          a record; made once, never changed
``run/<workflow>/<id>/step/<key>``             where a step stands
``run/<workflow>/<id>/ck/<name>``              a checkpoint; ``…/<name>/old/<version>`` as it was before a migration
``run/<workflow>/<id>/late/<12 digits>/…``     what an owner saw that had lost its lease: a hint, never authority
``run/<workflow>/<id>/blob/<sha256>/<n>``      pieces of a result too large for a record
``unfinished/<workflow>/<id>``                 a run that is not finished: what workers look through; its value is empty
``halt/<scope>``                               a scope in which no step may begin
``tomb/<workflow>/<id>``                       a run that was pruned
=============================================  =================================================================

"/" and "%" are escaped in each part, so that no part can reach into another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.keys import Keys, check_name, escape, unescape

__all__ = [
    "RunKeys",
    "RunName",
    "halts",
    "identity",
    "parse_run",
    "runs",
    "tomb",
    "tombs",
    "unfinished",
    "unfinished_of_all",
]

SEQ_DIGITS = 12
# A name may have 255 characters, and "/" and "%" take three when escaped: the lease's name has room for both parts.
PART_MAX = 100


@dataclass(frozen=True, slots=True)
class RunName:
    """A workflow and an id: one run."""

    workflow: str
    id: str

    def __post_init__(self) -> None:
        for name in ("workflow", "id"):
            value = check_name(getattr(self, name), name)
            if len(escape(value)) > PART_MAX:
                expected = f"at most {PART_MAX} characters, of which '/' and '%' count as three"
                raise ConfigError(field=name, value=value, expected=expected)

    @property
    def text(self) -> str:
        """``workflow/id``, with "/" in either escaped."""
        return f"{escape(self.workflow)}/{escape(self.id)}"

    @property
    def lease(self) -> str:
        """The name of the lease that owns the run."""
        return f"run/{self.text}"

    def __str__(self) -> str:
        return self.text


def parse_run(text: object) -> RunName:
    """The run that is written ``workflow/id``; ConfigError for anything else."""
    if isinstance(text, RunName):
        return text
    if isinstance(text, str) and text.count("/") == 1 and all(text.split("/")):
        workflow, _, run_id = text.partition("/")
        return RunName(unescape(workflow), unescape(run_id))
    raise ConfigError(field="run", value=text, expected="workflow/id, with %2F for '/' inside of either")


def runs(keys: Keys, prefix: str = "") -> bytes:
    """The prefix of all runs, or of those whose text begins with ``prefix``."""
    return f"{keys.root}run/{prefix}".encode()


def halts(keys: Keys) -> bytes:
    """The prefix of all halts."""
    return f"{keys.root}halt/".encode()


def identity(keys: Keys) -> bytes:
    """The namespace's own number and secret."""
    return f"{keys.root}identity".encode()


def unfinished(keys: Keys, workflow: str) -> bytes:
    """The prefix of a workflow's unfinished runs."""
    return unfinished_of_all(keys) + f"{escape(workflow)}/".encode()


def unfinished_of_all(keys: Keys) -> bytes:
    """The prefix of all unfinished runs; behind it stands the run as text."""
    return f"{keys.root}unfinished/".encode()


def tombs(keys: Keys) -> bytes:
    """The prefix of what is left of pruned runs."""
    return f"{keys.root}tomb/".encode()


def tomb(keys: Keys, name: RunName) -> bytes:
    """What is left of a pruned run."""
    return tombs(keys) + name.text.encode()


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run."""

    keys: Keys
    name: RunName
    root: str = field(init=False)
    meta: bytes = field(init=False)
    head: bytes = field(init=False)
    tomb: bytes = field(init=False)
    unfinished: bytes = field(init=False)

    def __post_init__(self) -> None:
        root = f"{self.keys.root}run/{self.name.text}/"
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "meta", f"{root}meta".encode())
        object.__setattr__(self, "head", f"{root}head".encode())
        object.__setattr__(self, "tomb", tomb(self.keys, self.name))
        object.__setattr__(
            self, "unfinished", unfinished(self.keys, self.name.workflow) + escape(self.name.id).encode()
        )

    @property
    def records(self) -> bytes:
        """The prefix of its records."""
        return f"{self.root}r/".encode()

    def record(self, seq: int) -> bytes:
        """The key of one record."""
        return f"{self.root}r/{seq:0{SEQ_DIGITS}d}".encode()

    @property
    def steps(self) -> bytes:
        """The prefix of its steps."""
        return f"{self.root}step/".encode()

    def step(self, key: str) -> bytes:
        """Where a step stands."""
        return f"{self.root}step/{escape(key)}".encode()

    def step_of(self, key: bytes) -> str:
        """The step that a key of `step` belongs to."""
        return unescape(key[len(self.steps) :].decode("utf-8", "replace"))

    @property
    def checkpoints(self) -> bytes:
        """The prefix of its checkpoints."""
        return f"{self.root}ck/".encode()

    def checkpoint(self, name: str) -> bytes:
        """A checkpoint."""
        return f"{self.root}ck/{escape(name)}".encode()

    def checkpoint_before(self, name: str, version: int) -> bytes:
        """A checkpoint as it was in an older version, before it was migrated."""
        return f"{self.root}ck/{escape(name)}/old/{version}".encode()

    @property
    def lates(self) -> bytes:
        """The prefix of what owners left that had lost their lease."""
        return f"{self.root}late/".encode()

    def late(self, seq: int, nonce: str) -> bytes:
        """What an owner saw that had lost its lease."""
        return f"{self.root}late/{seq:0{SEQ_DIGITS}d}/{nonce}".encode()

    def blob(self, digest: str, piece: int) -> bytes:
        """One piece of a large value."""
        return self.blobs(digest) + b"%04d" % piece

    def blobs(self, digest: str) -> bytes:
        """Before all pieces of one large value."""
        return f"{self.root}blob/{digest}/".encode()


def seq_of(key: bytes) -> int:
    """The number in a record's key; 0 for a key that is none."""
    digits = key.rpartition(b"/")[2]
    return int(digits) if len(digits) == SEQ_DIGITS and digits.isdigit() else 0
