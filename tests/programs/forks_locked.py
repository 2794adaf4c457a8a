"""A process that forks at the very moment at which every lock of its keeper is held by somebody who is not in the child.

Options: endpoint, namespace, ttl.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from leasekeeper.errors import LeasekeeperError
from tests.programs.voice import options, say

LOCKS = (type(threading.Lock()), type(threading.RLock()))
Lock = Any  # a lock of either kind
locks: list[Lock] = []


class Holder:
    """A thread that holds locks: one of the forking thread's own would be reentrant in the child."""

    def __init__(self) -> None:
        self.wanted, self.grabbed = threading.Event(), threading.Event()
        self.over, self.gone = threading.Event(), threading.Event()
        threading.Thread(target=self._hold, name="holder", daemon=True).start()

    def _hold(self) -> None:
        self.wanted.wait()
        held = [lock for lock in locks if lock.acquire(timeout=0.1)]
        self.grabbed.set()
        self.over.wait()
        for lock in held:
            lock.release()
        self.gone.set()

    def grab(self) -> None:
        """Take every lock that can be had soon, as a thread of the parent would; the others are held by somebody already."""
        self.wanted.set()
        self.grabbed.wait()

    def let_go(self) -> None:
        """The parent's threads go on."""
        self.over.set()
        self.gone.wait()


holder = Holder()


# Hooks before a fork run in reverse order, those after it in order: registered before the library's own, these enclose
# nothing but the fork itself.
os.register_at_fork(before=holder.grab, after_in_parent=holder.let_go)


def locks_of(thing: Any, seen: set[int]) -> list[Lock]:
    """Every lock that can be reached from an object of the library's, or of a queue in it, by attributes."""
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    if isinstance(thing, LOCKS):
        return [thing]
    if not type(thing).__module__.startswith(("leasekeeper.", "queue")):
        return []
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()) if name != "__weakref__"]
    parts = [*vars(thing).values()] if hasattr(thing, "__dict__") else []
    parts += [getattr(thing, name) for name in slots if hasattr(thing, name)]
    return [lock for part in parts for lock in locks_of(part, seen)]


def main() -> None:
    """Fork in the worst moment; the child does everything that a child may do."""
    from tests.programs.forks import await_watch, fork, keeper_of, look

    given = options()
    with keeper_of(given) as keeper:
        lease = keeper.acquire("n", timeout=10)
        keeper.acquire("dropped", timeout=10).subscribe(repr)
        lease.subscribe(repr)
        await_watch(keeper)
        locks.extend(locks_of(keeper._core, set()))

        def child() -> None:
            say("child", **look(lease, keeper))
            try:
                with keeper, lease:
                    pass
            except (Exception, LeasekeeperError) as error:  # noqa: BLE001 - reported
                say("left", error=repr(error))

        say("locks", count=len(locks))
        status = fork(child)
        say("parent", status=status, check=lease.check() == lease.token)


if __name__ == "__main__":
    main()
