"""In which ways effects are helped in simulated runs, and what a run is made of: its stages, its steps, drawn from its number.

The times are such that what an effect may rely on holds in these worlds: wall clocks differ by less, and requests are on their
way for less, than what is kept back of the time for which a callee remembers a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.testing.sim.keeper import KEYS

if TYPE_CHECKING:
    from random import Random

__all__ = ["POLICIES", "SKEW_S", "Policy", "Script", "StepPlan", "draw"]

# No wall clock is further off than this.
SKEW_S = 1.2
STEPS_AT_ONCE = (1, 1, 2, 3, 4)
STAGES = (1, 2, 2, 3)


@dataclass(frozen=True, slots=True)
class Policy:
    """One way. ``way_s`` is how long a request may be on its way, its sender dead or not; what is slower gets lost."""

    name: str
    helps: frozenset[str] = frozenset()
    preflight: Literal["", "strong", "eventual"] = ""
    verifies: bool = False
    key_ttl_s: float = 0.0
    way_s: float = 15.0
    need_s: float = 0.0
    max_age_s: float = 1.0
    settle_s: float = 0.0
    kind: Literal["do", "memo"] = "do"

    @property
    def dedupes(self) -> bool:
        """Whether the callee applies a repeated key once."""
        return "dedupes" in self.helps

    @property
    def probes(self) -> bool:
        """Whether what the preflight does not see was not applied, and will not be."""
        return "probe" in self.helps


POLICIES = (
    Policy("bare"),
    Policy("once", frozenset({"at_most_once"}), "eventual"),
    Policy("keyed", frozenset({"dedupes"}), "eventual", key_ttl_s=3600.0),
    Policy("forgetful", frozenset({"dedupes"}), verifies=True, key_ttl_s=15.0, way_s=0.5),
    Policy("probed", frozenset({"probe"}), "strong", verifies=True, way_s=0.3, need_s=0.4),
    Policy("fenced", frozenset({"fences"}), "strong"),
    Policy(
        "all", frozenset({"dedupes", "probe", "fences"}), "strong", verifies=True, key_ttl_s=60.0, way_s=0.3, need_s=0.4
    ),
    Policy("settling", frozenset({"dedupes"}), verifies=True, key_ttl_s=3600.0, settle_s=1.5),
    Policy("asked", kind="memo"),
)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``varies``: its argument depends on which release of the program asks. ``commits``: with a checkpoint."""

    key: str
    policy: Policy
    argument: str
    varies: bool = False
    commits: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """One run. ``attended``: an operator decides on what is in doubt; ``anchored``: steps wait for an anchor before they act.

    ``swallows``: the program goes on when a step has raised, as if nothing was amiss.
    """

    keys: RunKeys
    stages: tuple[tuple[StepPlan, ...], ...]
    attended: bool
    anchored: bool
    budget: int
    swallows: bool = False

    @property
    def run(self) -> str:
        """The run's text."""
        return self.keys.name.text

    @property
    def lease(self) -> str:
        """The name of the lease that owns it."""
        return self.keys.name.lease

    @property
    def steps(self) -> dict[str, StepPlan]:
        """Its steps by key."""
        return {step.key: step for stage in self.stages for step in stage}


def draw(chance: Random, number: int) -> Script:
    """The run of a number."""
    stages = []
    for stage in range(chance.choice(STAGES)):
        steps = []
        for index in range(chance.choice(STEPS_AT_ONCE)):
            policy = chance.choice(POLICIES)
            steps.append(
                StepPlan(
                    f"{stage}.{index}/{policy.name}",
                    policy,
                    f"{number}-{stage}-{index}",
                    varies=chance.random() < 0.1,
                    commits=index == 0 and policy.kind == "do" and chance.random() < 0.3,
                )
            )
        stages.append(tuple(steps))
    return Script(
        RunKeys(KEYS, RunName(f"w{number % 2}", f"{number}")),
        tuple(stages),
        attended=chance.random() < 0.85,
        anchored=chance.random() < 0.4,
        budget=chance.choice((4, 10, 10)),
        swallows=number % 4 == 3,
    )
