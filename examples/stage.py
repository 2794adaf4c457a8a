"""What the examples have in common: an etcd, an outside world, and an agent that is killed and comes back.

Not something to copy: the part of an example that is worth it is its own file. An example has an agent, which is what your
program would be, and a story, which says when the agent is killed and what must be true at the end. `play` runs the story;
the agent runs as a child process, one life after the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideView, OutsideWorld, Trouble, disagreements, records_of
from leasekeeper.testing.process import ChildProcess

__all__ = ["TTL_S", "Stage", "outside", "play"]

# How long a killed agent's lease outlives it: the pause before the next life goes on. 10 s or more is usual.
TTL_S = 2.0
HELD_MS = 600_000
LIFE_S = 60.0
POLL_S = 0.01
URL = "EXAMPLE_OUTSIDE"


def outside() -> str:
    """The address of the outside world, for the agent."""
    return os.environ[URL]


class Stage:
    """Runs the lives of one agent, says what happens when, and keeps the balance.

    ``id`` is that of the run; a new one each time, so that an etcd and a world that are lent can be used again.
    """

    def __init__(self, home: Path, world: OutsideView) -> None:
        self.id = uuid.uuid4().hex[:8]
        self.world = world
        self.kills = 0
        self._log = home / f"agent-{self.id}.log"
        self._lives = 0
        self._failures = 0
        self._started_s = time.monotonic()

    def say(self, text: str) -> None:
        """One line of the timeline."""
        print(f"{time.monotonic() - self._started_s:7.2f} s  {text}", flush=True)

    def kill(self, during: str, *, nth: int = 1, before: bool = False) -> None:
        """A life that ends by ``kill -9`` in the middle of a request.

        Args:
            during: "service.effect" of the request.
            nth: which of its requests to that effect, counted from 1.
            before: the request is under way, and nothing has happened yet: it will when the world is healed, after the
                agent's death. Else the effect has happened, and the answer is on its way.
        """
        happened = self.world.received if before else self.world.applied
        wanted = len(happened(during)) + nth
        self.world.trouble(Trouble("delay" if before else "delay_reply", during, nth=nth, ms=HELD_MS))
        life = self._begin()
        self._wait(lambda: len(happened(during)) >= wanted, life)
        life.kill()
        self.kills += 1
        self._show(life)
        where = "while the request is under way" if before else "when it has happened and the answer is under way"
        self.say(f"agent {self._lives}: kill -9 in {during}, {where}")
        if not before:
            self.world.heal()

    def stumble(self, trouble: Trouble) -> None:
        """A life that ends with an error of its own, since something went wrong at the world and it knows no better."""
        self.world.trouble(trouble)
        life = self._begin()
        self._wait(lambda: not life.alive, life)
        last = life.log.read_text(errors="replace").rstrip().rpartition("\n")[2]
        self.say(f"agent {self._lives}: has ended with exit code {life.exit_status}, after {trouble.kind}: {last}")
        self.expect("a life that met trouble has ended well", life.exit_status == 0, False)

    def finish(self) -> None:
        """A life that comes to its end by itself."""
        life = self._begin()
        self._wait(lambda: not life.alive, life)
        self._show(life)
        self.say(f"agent {self._lives}: has ended with exit code {life.exit_status}")
        self.expect("exit code of the last agent", life.exit_status, 0)

    def count(self, where: str, subject: str) -> int:
        """How often "service.effect" has happened to a subject, by the world's own ledger."""
        return len(self.world.applied(where, subject))

    def expect(self, what: str, found: object, wanted: object) -> None:
        """One line of the balance; one that is wrong makes the example fail."""
        right = found == wanted
        self._failures += not right
        self.say(f"{'ok   ' if right else 'WRONG'} {what}: {found}{'' if right else f', and not {wanted}'}")

    def expect_agreement(self, workflow: str) -> None:
        """One line of the balance: what the run has recorded and what the world has written down fit together."""
        with Keeper.from_env() as keeper:
            records = records_of(keeper, workflow, self.id)
        ours = [entry for entry in self.world.ledger() if self.id in entry.subject]
        what = f"disagreements between {len(records)} records of the run and the world's ledger"
        self.expect(what, disagreements(ours, records), [])

    @property
    def failures(self) -> int:
        """How many lines of the balance were wrong."""
        return self._failures

    # -- within

    def _begin(self) -> ChildProcess:
        self._lives += 1
        self._log.write_bytes(b"")
        self.say(f"agent {self._lives}: begins")
        return ChildProcess([sys.executable, *sys.argv[:1], "--agent", self.id], log=self._log)

    def _wait(self, condition: Callable[[], bool], life: ChildProcess) -> None:
        until_s = time.monotonic() + LIFE_S
        while not condition():
            if (not life.alive and not condition()) or time.monotonic() > until_s:
                life.kill()
                self._show(life)
                self.say(f"WRONG agent {self._lives} has not done what the story says (exit code {life.exit_status})")
                sys.exit(1)
            time.sleep(POLL_S)

    def _show(self, life: ChildProcess) -> None:
        for line in life.log.read_text(errors="replace").splitlines():
            self.say(f"agent {self._lives}: | {line}")


def play(story: Callable[[Stage], None], agent: Callable[[str], None]) -> None:
    """Run the story, or as its child the agent, which gets the id of the run."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--etcd", metavar="HOST:PORT", help="an etcd that runs already; else one is started")
    parser.add_argument("--outside", metavar="URL", help="an outside world that runs already; else one is started")
    parser.add_argument("--agent", metavar="ID", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.agent:
        agent(given.agent)
        return
    with ExitStack() as open_:
        endpoint = given.etcd or open_.enter_context(EtcdServer(fsync=False)).endpoint
        own = OutsideWorld()
        world = OutsideView(given.outside) if given.outside else open_.enter_context(own)
        os.environ.update({"LEASEKEEPER_ENDPOINTS": endpoint, URL: world.url})
        stage = Stage(own.home, world)
        story(stage)
        stage.say(f"{stage.kills} kills, {stage.failures} lines that are wrong")
    sys.exit(1 if stage.failures else 0)
