"""The plugin in test runs of its own: what it costs, what it says without an etcd, and what its assertions print."""

from __future__ import annotations

import sys

import pytest

from leasekeeper.testing import EtcdServer
from tests.process.trees import none_left
from tests.support import until

pytestmark = pytest.mark.timeout(120)

WAYS = (
    "leasekeeper[embedded]",
    "etcd-server",
    "LEASEKEEPER_ETCD=",
    "--leasekeeper-etcd=/path/to/etcd",
    "--leasekeeper-etcd=docker",
    "--leasekeeper-etcd=http://HOST:PORT",
    "--leasekeeper-missing=skip",
)


# pytest-asyncio warns of a setting that its older releases do not know.
UNSET_SCOPE = ("-W", "ignore::pytest.PytestDeprecationWarning")


@pytest.fixture
def no_etcd(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """Runs of this test find no etcd: none on PATH, none in a package, no Docker."""
    monkeypatch.delenv("LEASEKEEPER_ETCD", raising=False)
    monkeypatch.setenv("PATH", str(pytester.mkdir("empty")))
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/docker.sock")
    pytester.makeconftest(
        """
        from leasekeeper.testing import binary

        binary._package_directories = list
        """
    )


def test_who_does_not_use_it_does_not_pay(pytester: pytest.Pytester) -> None:
    """B32: without one of its fixtures nothing but the plugin itself is imported, and SIGTERM is left alone."""
    pytester.makepyfile(
        """
        import signal, sys, threading

        def test_plain():
            ours = {name for name in sys.modules if name.split(".")[0] == "leasekeeper"}
            assert ours <= {"leasekeeper", "leasekeeper._version", "leasekeeper.testing", "leasekeeper.testing.plugin"}
            assert "leasekeeper.testing.plugin" in ours
            assert not {"grpc", "google.protobuf", "rich", "click", "http.client"} & set(sys.modules)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert threading.active_count() == 1
        """
    )
    pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:timeout").assert_outcomes(passed=1)


def test_the_fixtures_explain_themselves(pytester: pytest.Pytester) -> None:
    """The list of --fixtures has each of them with a sentence, and --help both options."""
    listed = pytester.runpytest_subprocess("--fixtures", "-p", "no:asyncio").stdout.str()
    listed = listed.partition("from leasekeeper.testing.plugin")[2].partition("fixtures defined from")[0]
    names = (
        "etcd",
        "etcd_server",
        "etcd_cluster",
        "leasekeeper_etcd",
        "faults",
        "keeper",
        "async_keeper",
        "lease_clock",
    )
    for name in names:
        assert f"\n{name} " in listed, name
    assert "no docstring available" not in listed
    shown = pytester.runpytest_subprocess("--help").stdout.str()
    assert "--leasekeeper-etcd=auto|PATH|docker|URL" in shown
    assert "--leasekeeper-missing={fail,skip}" in shown
    assert "leasekeeper_missing (string):" in shown


@pytest.mark.usefixtures("no_etcd")
def test_without_an_etcd_tests_fail(pytester: pytest.Pytester) -> None:
    """By default nothing is skipped in silence: tests fail, and the message names every way to an etcd."""
    pytester.makepyfile("def test_it(keeper): pass\n\ndef test_other(etcd): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=2)
    for way in WAYS:
        result.stdout.fnmatch_lines([f"*{way.replace('[', '[[]')}*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.usefixtures("no_etcd")
@pytest.mark.parametrize("by_setting", [False, True])
def test_without_an_etcd_tests_are_skipped_if_told(pytester: pytest.Pytester, by_setting: bool) -> None:
    """The option, or the setting of the same name, turns failures into skips with the same message."""
    pytester.makepyfile("def test_it(keeper): pass\n\ndef test_plain(): pass")
    if by_setting:
        pytester.makeini("[pytest]\nleasekeeper_missing = skip")
    result = pytester.runpytest_subprocess("-rs", *([] if by_setting else ["--leasekeeper-missing=skip"]))
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*SKIPPED*no etcd was found*"])


@pytest.mark.usefixtures("no_etcd")
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("/no/such/etcd", "*'/no/such/etcd'*the path of an etcd program*"),
        ("http://user:secret@127.0.0.1:2379", "*http://host:port*"),
        ("https://127.0.0.1:2379", "*http://host:port*"),
        ("docker", "*no Docker daemon answers*"),
    ],
)
def test_what_is_named_and_cannot_be_used_is_told(pytester: pytest.Pytester, wanted: str, said: str) -> None:
    """A wrong value of the option is one clear message, and no password is shown."""
    pytester.makepyfile("def test_it(etcd): pass")
    result = pytester.runpytest_subprocess(f"--leasekeeper-etcd={wanted}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])
    assert "secret" not in "\n".join(line for line in result.outlines if "--leasekeeper-etcd=http" not in line)


def test_a_path_is_taken(pytester: pytest.Pytester, etcd: EtcdServer) -> None:
    """A program named by the setting is the one that is started."""
    pytester.makeini(f"[pytest]\nleasekeeper_etcd = {etcd.binary.etcd}")
    pytester.makepyfile(f"def test_it(etcd_server): assert etcd_server.binary.etcd == {etcd.binary.etcd!r}")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_running_etcd_is_used_and_left_clean(pytester: pytest.Pytester, etcd: EtcdServer) -> None:
    """With a URL no server is started; what a test leaves there is removed, and what needs a server of its own says so."""
    pytester.makepyfile(
        """
        import pytest
        from leasekeeper import Keeper, Misuse

        left = []

        def test_it(etcd, faults):
            keeper = Keeper(etcd.endpoint, namespace=etcd.namespace)
            left.append((keeper, keeper.acquire("forgotten", ttl=60), etcd))
            with pytest.raises(Misuse, match="started by somebody else"):
                faults.freeze()

        def test_nothing_is_left(etcd):
            _, _, earlier = left[0]
            with Keeper(earlier.direct, namespace=earlier.namespace) as keeper:
                assert list(keeper.names()) == []

        def test_cluster(etcd_cluster):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", f"--leasekeeper-etcd=http://{etcd.endpoint}")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*needs a cluster of its own*"])


def test_fixtures_of_ones_own_by_the_same_names(pytester: pytest.Pytester) -> None:
    """A project that has a fixture `etcd` already keeps it, and `keeper` and `faults` work beside it."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def etcd():
            return "mine"

        def test_it(etcd, keeper, faults, leasekeeper_etcd):
            assert etcd == "mine"
            assert leasekeeper_etcd.endpoint == faults.endpoint
            keeper.acquire("x").release()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_workers_have_a_server_each(pytester: pytest.Pytester, mark: str) -> None:
    """pytest-xdist: every worker has its own server, and one that crashes takes nothing of the others with it."""
    pytester.makepyfile(
        """
        import os, pytest, time

        @pytest.mark.parametrize("number", range(6))
        def test_it(keeper, etcd_server, number):
            with open(f"server-{etcd_server.pid}", "a") as file:
                file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
            with keeper.lease("same-name", timeout=0):
                time.sleep(0.2)

        def test_crash(keeper):
            keeper.acquire("same-name")
            os._exit(9)
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:randomly")
    result.assert_outcomes(passed=6, failed=1)
    servers = list(pytester.path.glob("server-*"))
    assert len(servers) >= 2
    assert all(len(set(server.read_text().split())) == 1 for server in servers)
    until(lambda: none_left(mark))


def test_under_pytest_asyncio(pytester: pytest.Pytester) -> None:
    """async_keeper lives in the test's own loop, in strict and in auto mode, and also in an async fixture."""
    pytest.importorskip("pytest_asyncio")
    pytester.makepyfile(
        """
        import asyncio, pytest, pytest_asyncio
        from leasekeeper import LeaseLost

        @pytest_asyncio.fixture
        async def lease(async_keeper):
            async with async_keeper.lease("jobs", ttl=30) as lease:
                yield lease

        @pytest.mark.asyncio
        async def test_it(async_keeper, lease):
            assert lease.check() == lease.token
            assert await async_keeper.try_acquire("jobs") is None

        @pytest.mark.asyncio
        async def test_theft(async_keeper, faults):
            async def work():
                await asyncio.sleep(600)

            lease = await async_keeper.acquire("jobs", ttl=30)
            running = asyncio.ensure_future(lease.supervise(work()))
            rival = await asyncio.to_thread(faults.steal, "jobs")
            assert rival.token > lease.token
            with pytest.raises(LeaseLost):
                await running
        """
    )
    for mode in ("strict", "auto"):
        result = pytester.runpytest_subprocess("-W", "error", *UNSET_SCOPE, f"--asyncio-mode={mode}")
        result.assert_outcomes(passed=2)


def test_an_assertion_is_readable(pytester: pytest.Pytester) -> None:
    """A broken fence, an overlap and work that goes on are told in the report without a line of our own code."""
    pytester.makepyfile(
        """
        from leasekeeper.testing import Span, assert_exclusive, assert_fenced, assert_pauses

        class Accounts:
            def __init__(self):
                self.rows = {}

            def write(self, resource, lease, value):
                self.rows[resource] = value

        def test_fence():
            assert_fenced(Accounts())

        def test_overlap():
            assert_exclusive([Span(7, "a", 0, 2, "one"), Span(8, "b", 1, 3, "two")])

        def test_pause():
            steps = iter(range(1, 10**9))
            assert_pauses(lambda: next(steps), within=0.1)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*Accounts is not fenced: it breaks * of * rules",
            "E *older owner: after a newer owner no older one is accepted",
            "E *1. older, token 7 of claim 'a', writes *: accepted",
            "E *2. newer, token 8 of claim 'b', writes *: accepted",
            "E *3. older, token 7 of claim 'a', writes *: accepted: WRONG, must be refused: a newer owner has written",
            "*two owners acted at once, for 1.000 s: one (token 7) and two (token 8)",
            "*the work did not pause: it still made a step*",
        ]
    )
    assert "fenced.py" not in result.stdout.str()


def test_the_plugin_can_be_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plugins are not loaded by themselves, -p leasekeeper.testing.plugin does it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("def test_it(keeper): keeper.acquire('x').release()")
    result = pytester.run(sys.executable, "-m", "pytest", "-p", "leasekeeper.testing.plugin")
    result.assert_outcomes(passed=1)
