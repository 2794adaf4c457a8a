"""What workers share, under threads and asyncio: which runs they may take, and when to leave one alone."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leasekeeper.durations import duration_s
from leasekeeper.errors import ConfigError, LeaseLost, Misuse
from leasekeeper.protocol.keys import check_name
from leasekeeper.run_errors import Quarantined, RunHalted
from leasekeeper.runs.options import options

if TYPE_CHECKING:
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.runs.options import Asked, RunOptions

__all__ = ["Pool", "tell_failure"]

log = logging.getLogger("leasekeeper")

CONCURRENCY_MAX = 256
# A run that failed is left alone for a while, longer each time; so many are remembered.
REST_FIRST_S = 1.0
REST_MAX_S = 300.0
RESTING_MAX = 10_000


class Pool:
    """The workflows that a worker resumes, and how it spaces its attempts. Used by one thread, or one loop, at a time."""

    def __init__(
        self,
        resume: Mapping[str, Callable[..., Any]],
        *,
        concurrency: int,
        every: float | str,
        now: Callable[[], float],
        asked: Asked,
    ) -> None:
        if not resume:
            raise ConfigError(
                field="resume", value=resume, expected="a dict of workflow to the function that is given the run"
            )
        for workflow, main in dict(resume).items():
            check_name(workflow, "workflow")
            if not callable(main):
                raise Misuse(f"resume[{workflow!r}]={main!r}: expected a function that is given the run")
        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ConfigError(field="concurrency", value=concurrency, expected=f"1 to {CONCURRENCY_MAX}")
        self.resume = dict(resume)
        self.concurrency = concurrency
        self.every_s = duration_s("every", every)
        self._asked = asked
        self._now = now
        self._resting: OrderedDict[str, tuple[float, float]] = OrderedDict()
        for workflow in self.resume:
            options(workflow, id="any", **asked)  # what cannot be is said now

    def options(self, name: RunName) -> RunOptions:
        """How a run is opened."""
        return options(name.workflow, id=name.id, **self._asked)

    def shuffled(self, found: list[RunName]) -> list[RunName]:
        """Those that may be tried now, in an order of this worker's own, so that replicas do not all try one first."""
        now_s = self._now()
        ready = [name for name in found if self._resting.get(name.text, (0.0, 0.0))[0] <= now_s]
        random.shuffle(ready)
        return ready

    def pause_s(self) -> float:
        """How long to wait before looking again, never the same for two replicas."""
        return self.every_s * (0.5 + random.random())

    def failed(self, name: RunName) -> None:
        """Leave it alone for a while."""
        _, rest_s = self._resting.pop(name.text, (0.0, REST_FIRST_S / 2))
        rest_s = min(REST_MAX_S, 2 * rest_s)
        self._resting[name.text] = (self._now() + rest_s * (0.5 + random.random() / 2), rest_s)
        while len(self._resting) > RESTING_MAX:
            self._resting.popitem(last=False)

    def done(self, name: RunName) -> None:
        """It needs no rest any more."""
        self._resting.pop(name.text, None)


def tell_failure(name: RunName, error: BaseException) -> None:
    """Log why a run did not get to its end: in one line where its records say the rest, else with where it was raised."""
    if isinstance(error, (LeaseLost, RunHalted, Quarantined)):
        log.info("run %s did not get to its end here: %s", name, error)
    else:
        log.error("run %s did not get to its end here: %s", name, error, exc_info=error)
