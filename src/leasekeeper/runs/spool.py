"""The spool of one attempt: what a call has got so far, such as the beginning of a model's answer, kept as notes of the run.

An attempt that is killed leaves what it had got by then for people to look at (`leasekeeper runs explain`). It is never used as a
result: the next attempt asks the identical question and takes the whole answer.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from leasekeeper.canonical import canonical
from leasekeeper.errors import StopWork
from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.protocol.note import note

if TYPE_CHECKING:
    from leasekeeper.protocol.incarnation import Incarnation
    from leasekeeper.protocol.plan import Plan
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.runtime.held import Held

__all__ = ["NOTES_MAX", "Spool"]

log = logging.getLogger("leasekeeper")

# Of one attempt. From the first half of them on, each waits twice as long as the one before, so that they last for hours.
NOTES_MAX = 20


class Spool:
    """Takes what a call has got so far, and makes notes of it, now and then. Usable from any thread; never fails its caller."""

    __slots__ = (
        "_complained",
        "_due_s",
        "_every_s",
        "_held",
        "_intent",
        "_key",
        "_latest",
        "_life",
        "_lock",
        "_number",
    )

    def __init__(self, held: Held, life: Incarnation, key: str, pointer: Pointer, every_s: float) -> None:
        self._held = held
        self._life = life
        self._key = key
        self._intent = pointer.intent if pointer.state == "intent" else 0
        self._every_s = every_s
        self._lock = threading.Lock()
        self._due_s = held._now() + every_s
        self._number = 0
        self._latest: str | None = None
        self._complained = False

    def keep(self, partial: object) -> None:
        """Take it, and wait for a note of it if one is due."""
        plan = self._taken(partial)
        if plan is not None:
            try:
                self._held._core.blocking.run(plan)
            except (Exception, StopWork) as error:  # noqa: BLE001 - the call itself is more important
                self._complain(error)

    async def akeep(self, partial: object) -> None:
        """`keep` under asyncio."""
        plan = self._taken(partial)
        if plan is not None:
            try:
                await self._held._core.asyncio.run(plan)
            except (Exception, StopWork) as error:  # noqa: BLE001 - the call itself is more important
                self._complain(error)

    def last_word(self) -> Plan[None] | None:
        """A note of what came after the last one; None where nothing did."""
        with self._lock:
            return self._next() if self._latest is not None and self._number < NOTES_MAX else None

    def _taken(self, partial: object) -> Plan[None] | None:
        try:
            text = (
                partial
                if isinstance(partial, str)
                else canonical(partial, "partial", big="text", most=VALUE_MAX).decode()
            )
        except Exception as error:  # noqa: BLE001 - it is not a result that was refused
            self._complain(error)
            return None
        with self._lock:
            if not self._intent:
                return None  # in a preflight: nothing was begun of which this could be a part
            self._latest = text
            late = self._held._now() >= self._due_s and self._number < NOTES_MAX
            # Without authority a note would only be waited for.
            return self._next() if late and self._held.remaining() > 0 else None

    def _next(self) -> Plan[None]:
        text, self._latest = self._latest or "", None
        self._number += 1
        self._due_s = self._held._now() + self._every_s * 2 ** max(0, self._number - NOTES_MAX // 2)
        return note(self._life, self._key, intent=self._intent, number=self._number, text=text)

    def _complain(self, error: BaseException) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "step %r: what it has so far could not be noted: %s", self._key, str(error) or type(error).__name__
            )
