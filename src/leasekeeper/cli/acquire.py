"""``leasekeeper acquire``: hold a lease until somebody says stop."""

from __future__ import annotations

import time
from signal import Signals
from typing import TYPE_CHECKING, Any

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.interrupts import Interrupts
from leasekeeper.cli.output import json_line, print_lines, styled
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.taking import WAIT_LEASE, lease_options, take
from leasekeeper.cli.text import clip, lease_hex, moment, time_of_day
from leasekeeper.cli.values import name_argument
from leasekeeper.protocol.authority import State

if TYPE_CHECKING:
    from leasekeeper.keeper import Lease

# The clock is read at least this often, in case that news is late.
LOOK_S = 0.5
STYLES = {State.HELD: "green", State.SUSPENDED: "yellow", State.LOST: "bold red", State.RELEASED: ""}


@lease_command("acquire", timeout_help=WAIT_LEASE)
@name_argument
@lease_options
def command(settings: Settings, name: str, ttl: float | None, remark: str) -> int:
    """Hold the lease on NAME until Ctrl-C or TERM, and say how it stands.

    Then the lease is given back and the exit code is 0: holding until told is what was asked for. Stopped while it still waits
    it is 130 or 143, 75 when --timeout is over, 76 when the lease is lost.
    """
    with Interrupts() as interrupts, settings.keeper() as keeper:
        with take(settings, keeper, name, ttl=ttl, remark=remark) as lease:
            interrupts.queue()
            lease.subscribe(interrupts.put)
            _hold(lease, interrupts, settings)
        _tell(lease, State.RELEASED, settings)
    return DONE


def _hold(lease: Lease, interrupts: Interrupts, settings: Settings) -> None:
    """Until a signal comes or the lease is over."""
    told: State | None = None
    item: object | None = None
    while not isinstance(item, Signals):
        # News in their order first, so that a short pause is told as well; the clock where there are none.
        state = item if isinstance(item, State) else lease.state
        if state is not told:
            _tell(lease, state, settings)
            told = state
        if state.final:
            return
        item = interrupts.take(LOOK_S)


def _tell(lease: Lease, state: State, settings: Settings) -> None:
    if settings.as_json:
        json_line(_shape(lease, state))
        return
    line = styled(f"{time_of_day(time.time())}  ")
    line.append(f"{state.value:<9}", STYLES[state]).append(f"  {clip(lease.name, 255)}")
    if state is State.HELD:
        line.append(f"  token {lease.token}  lease {lease_hex(lease.lease_id)}")
    elif state is State.LOST and lease.loss is not None:
        line.append(f"  {lease.loss.reason}, {lease.loss.proof_age_s:.1f} s after the last proof")
    print_lines([line])


def _shape(lease: Lease, state: State) -> dict[str, Any]:
    return {
        "at": moment(time.time()),
        "state": state.value,
        "name": lease.name,
        "token": str(lease.token),
        "key": lease.key,
        "lease": lease_hex(lease.lease_id),
        "claim": lease.claim,
        "holder": lease.holder,
        "loss": lease.loss.reason if lease.loss is not None else None,
    }
