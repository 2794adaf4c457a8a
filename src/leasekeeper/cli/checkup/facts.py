"""What the doctor was told, before anybody judges it. None always means: not told, or not allowed to see."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasekeeper.protocol.keys import Claim

__all__ = ["AlarmFact", "EndpointFact", "Facts", "MemberFact", "Rights"]


@dataclass(frozen=True, slots=True)
class EndpointFact:
    """One endpoint. ``refusal``: why it did not tell its status; "" when it did. Sizes in bytes."""

    endpoint: str
    refusal: str = ""
    # It answered, but would not tell this user.
    denied: bool = False
    version: str = ""
    cluster_id: int = 0
    member_id: int = 0
    leader_id: int = 0
    learner: bool = False
    db_size: int = 0
    db_quota: int = 0
    latency_s: float | None = None
    clock_ahead_s: float | None = None

    @property
    def told(self) -> bool:
        """Whether its status is known."""
        return not self.refusal


@dataclass(frozen=True, slots=True)
class MemberFact:
    """One member of the cluster."""

    member_id: int
    name: str
    client_urls: tuple[str, ...]
    learner: bool


@dataclass(frozen=True, slots=True)
class AlarmFact:
    """One alarm that is raised: ``NOSPACE`` or ``CORRUPT``."""

    kind: str
    member_id: int


@dataclass(frozen=True, slots=True)
class Rights:
    """What this user may do with the namespace's keys: None for yes, else what etcd said."""

    read: str | None = None
    write: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. ``compacted``: whether the first revision is gone. ``odd``: claims that need a person.

    ``identity`` is the number that the namespace's runs carry, "" when it has none; ``identity_why`` is why it cannot be told.
    """

    endpoints: tuple[EndpointFact, ...]
    namespace: str
    tls: bool = False
    loopback: bool = False
    user: str | None = None
    auth_off: bool = False
    members: tuple[MemberFact, ...] | None = None
    alarms: tuple[AlarmFact, ...] | None = None
    # Why members or alarms are not told, when it is not for want of rights.
    silence: str = ""
    rights: Rights | None = None
    revision: int = 0
    compacted: bool | None = None
    epoch: int | None = None
    odd: tuple[Claim, ...] = field(default=())
    identity: str | None = None
    identity_why: str = ""
    # The namespace could not be read for another reason than missing rights.
    trouble: str = ""
