"""A real etcd server on 127.0.0.1, for tests that need one.

``with EtcdServer() as etcd: Keeper(etcd.endpoint)`` starts a process on free ports with a data
directory of its own and removes both at the end. On Linux the server dies with this process however
that ends; elsewhere a ``kill -9`` of this process leaves it running, see ``process``.
"""

from __future__ import annotations

import os
import shutil
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from leasekeeper.errors import Misuse, Unavailable
from leasekeeper.testing import flags, ports, snapshots
from leasekeeper.testing.binary import EtcdBinary, find_etcd, from_path
from leasekeeper.testing.container import ContainerProcess
from leasekeeper.testing.flags import Membership, alone
from leasekeeper.testing.health import Gateway, MemberStatus, TLSFiles
from leasekeeper.testing.homes import make_home
from leasekeeper.testing.process import ChildProcess

if TYPE_CHECKING:
    from typing_extensions import Self

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 2.0
POLL_S = 0.03
START_TRIES = 8
PORT_WAIT_S = 0.5
LOG_TAIL_BYTES = 16 * 1024
IN_USE = "address already in use"


class ServerOptions(TypedDict, total=False):
    """What ``EtcdServer`` and every member of an ``EtcdCluster`` can be told."""

    quota_bytes: int | None
    auth_token_ttl_s: int | None
    election_timeout_ms: int | None
    snapshot_count: int | None
    tls: TLSFiles | None
    user: str | None
    fsync: bool
    extra_args: Sequence[str]
    ready_timeout_s: float


class EtcdServer:
    """One etcd process: a context manager that starts it, waits until it serves, and removes it.

    ``binary`` is a path, or what ``find_etcd()`` returned; None looks for one. ``data_dir`` None means a temporary
    directory that goes with ``close()``, at the latest with this process; after a kill the next start on this machine
    removes it. ``client_port`` None draws a free port, kept over every restart. ``quota_bytes``, ``auth_token_ttl_s``,
    ``election_timeout_ms`` and ``snapshot_count`` are etcd's own settings; ``extra_args`` go to its command line last.
    ``tls`` makes the client port speak TLS and ask for certificates. ``user``, "name:password", is what this object itself
    shows once a test has turned authentication on; it can be set later. ``fsync=False`` trades durability over a power cut,
    not over ``kill()``, for speed, where the server knows how.

    Not safe for use from several threads at once. Raises ConfigError for a wrong setting,
    Unavailable with the end of the server's log when it does not come up.
    """

    def __init__(
        self,
        *,
        binary: EtcdBinary | str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        client_port: int | None = None,
        quota_bytes: int | None = None,
        auth_token_ttl_s: int | None = None,
        election_timeout_ms: int | None = None,
        snapshot_count: int | None = None,
        tls: TLSFiles | None = None,
        user: str | None = None,
        fsync: bool = True,
        extra_args: Sequence[str] = (),
        ready_timeout_s: float = READY_TIMEOUT_S,
        membership: Membership | None = None,
    ) -> None:
        if isinstance(binary, EtcdBinary):
            self.binary = binary
        else:
            self.binary = from_path(binary) if binary is not None else find_etcd()
        self.tls = tls
        self.user = user
        self.ready_timeout_s = ready_timeout_s
        self._settings = flags.settings(quota_bytes, auth_token_ttl_s, election_timeout_ms, snapshot_count)
        if not fsync:
            self._settings += flags.no_fsync(self.binary)
        self._extra_args = tuple(extra_args)
        self._membership = membership
        self._wanted_port = client_port
        self._wanted_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._home: Path | None = None
        self._client_port = 0
        self._peer_port = 0
        self._process: ChildProcess | ContainerProcess | None = None
        # Of its latest process, 0 before the first; unlike pid it can be read while another thread ends the server.
        self.last_pid = 0
        self._owner_pid = os.getpid()

    # -- what it is

    @property
    def endpoint(self) -> str:
        """Where clients reach it, as "127.0.0.1:port"; the same over every restart."""
        if not self._client_port:
            raise Misuse("this server was never started: use it in a with statement or call start()")
        return f"{ports.HOST}:{self._client_port}"

    @property
    def url(self) -> str:
        """The endpoint with its scheme, as etcd's own tools like it."""
        return f"{'https' if self.tls else 'http'}://{self.endpoint}"

    @property
    def name(self) -> str:
        """The name of this member in its cluster."""
        return self._place().name

    @property
    def pid(self) -> int:
        """The process id of the running server; Misuse when it does not run."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """True while its process lives, frozen or not."""
        return self._process is not None and self._process.alive

    @property
    def data_dir(self) -> Path:
        """The directory that holds its data."""
        if self._wanted_dir is not None:
            return self._wanted_dir
        return self._home_dir() / "data"

    @property
    def version(self) -> str:
        """The release that the running server tells, as "3.5.1"."""
        self._running()
        return self.gateway.version(timeout_s=REQUEST_TIMEOUT_S)

    @property
    def gateway(self) -> Gateway:
        """Its HTTP side, asked as ``user``."""
        return Gateway(self.endpoint, self.tls, self.user)

    def status(self, *, timeout_s: float = REQUEST_TIMEOUT_S) -> MemberStatus:
        """What it says of itself.

        Unavailable when it does not answer in ``timeout_s`` seconds, AuthError when it wants a ``user`` (from 3.6 on).
        """
        return self.gateway.status(timeout_s=timeout_s)

    # -- its life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, *, wait: bool = True) -> None:
        """Start the process on its data and, unless ``wait`` is false, wait until it serves.

        A first start draws other ports when somebody took the ones drawn; a later one keeps its
        ports and tries again for a few seconds. Misuse when it runs already.
        """
        if self.is_running:
            raise Misuse(f"the etcd server at {self.endpoint} runs already")
        for attempt in range(1, START_TRIES + 1):
            self._choose_ports()
            if self._launch(wait=wait):
                return
            if attempt < START_TRIES:
                self._give_back_ports()
        raise self._failure(f"{self.endpoint}: {IN_USE} by another process")

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until it answers with a quorum behind it; Unavailable after ``timeout_s``."""
        limit_s = self.ready_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while not self.gateway.is_healthy(timeout_s=HEALTH_TIMEOUT_S):
            if not self.is_running:
                raise self._failure(f"etcd at {self.endpoint} ended before it served")
            if time.monotonic() >= deadline:
                raise self._failure(f"etcd at {self.endpoint} does not serve after {limit_s:g} s")
            time.sleep(POLL_S)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it as an operator would: TERM, after ``timeout_s`` KILL. Data and ports stay."""
        if self._process is not None:
            self._process.stop(timeout_s)
            self._process = None

    def kill(self) -> None:
        """End it as a power cut would. Data and ports stay; does nothing when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self, *, wait: bool = True) -> None:
        """Stop it if it runs and start it on the same ports and data."""
        self.stop()
        self.start(wait=wait)

    def freeze(self) -> None:
        """Stop its execution (SIGSTOP): connections stay open and nobody answers. POSIX only."""
        self._running().freeze()

    def thaw(self) -> None:
        """Let it go on (SIGCONT). POSIX only."""
        self._running().thaw()

    def close(self) -> None:
        """End it and remove its temporary directory. Does nothing the second time, or in a forked child."""
        if os.getpid() != self._owner_pid:
            return
        if self._wanted_dir is None:
            self.kill()  # its data go too, so there is nothing to wait for
        self.stop()
        if self._home is not None:
            self._remove_home()
            self._home = None

    # -- its data and its log

    def snapshot(self, path: str | os.PathLike[str]) -> Path:
        """Save a snapshot of the running server to ``path``, as ``etcdctl snapshot save`` does.

        ConfigError when there is no etcdctl beside the server's program.
        """
        self._running()
        return snapshots.save(self.binary, self.endpoint, Path(path).absolute(), tls=self.tls, user=self.user)

    def restore(self, path: str | os.PathLike[str], *, extra_args: Sequence[str] = (), wait: bool = True) -> None:
        """Replace all data by a snapshot and start again on the same ports, as after a disaster.

        Real, with everything that comes with it: the revision goes back, revoked leases live again,
        cluster id and member id stay. ``extra_args`` go to the restore command. ConfigError when
        neither etcdutl nor an etcdctl that can restore is beside the server's program; then the
        server is untouched.
        """
        program = snapshots.restoring_program(self.binary)
        self.kill()  # its data are to go
        self._choose_ports()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        snapshots.restore(program, Path(path).absolute(), self.data_dir, self._place().as_flags(), extra_args)
        self.start(wait=wait)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of its log, at most 16 KiB."""
        log = self._log_path()
        if self._process is not None:
            self._process.save_log()
        if not log.exists():
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    # -- within

    def _running(self) -> ChildProcess | ContainerProcess:
        if self._process is None or not self._process.alive:
            raise Misuse("this etcd server does not run")
        return self._process

    def _home_dir(self) -> Path:
        if self._home is None:
            home = make_home()
            self._home = home.path
            self._remove_home = weakref.finalize(self, home.remove)
        return self._home

    def _log_path(self) -> Path:
        return self._home_dir() / "etcd.log"

    def _choose_ports(self) -> None:
        if not self._client_port:
            self._client_port = self._wanted_port or ports.free_port()
        if not self._peer_port:
            self._peer_port = self._membership.peer_port if self._membership else ports.free_port()

    def _give_back_ports(self) -> None:
        """Draw again next time; pause where a port is fixed, since a dying server may free it."""
        fresh = not self.data_dir.exists()
        if fresh and self._wanted_port is None:
            self._client_port = 0
        elif not ports.is_free(self._client_port):
            time.sleep(PORT_WAIT_S)
        if fresh and self._membership is None:
            self._peer_port = 0

    def _launch(self, *, wait: bool) -> bool:
        """Start the process once; False when a port was taken, by whomever and whenever."""
        # Asked first, because an old server on the port would answer the health check for ours.
        if not (ports.is_free(self._client_port) and ports.is_free(self._peer_port)):
            return False
        fresh = not self.data_dir.exists()
        self._process = self._spawn()
        self.last_pid = self._process.pid
        try:
            if wait:
                self.wait_ready()
        except Unavailable as error:
            taken = not self.is_running and IN_USE in error.detail
            self.kill()
            if not taken:
                raise
            if fresh:
                shutil.rmtree(self.data_dir, ignore_errors=True)
            return False
        return True

    def _spawn(self) -> ChildProcess | ContainerProcess:
        log = self._log_path()
        if self.binary.source != "docker":
            return ChildProcess([self.binary.etcd, *self._flags()], log=log)
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys = {Path(file).absolute().parent for file in (self.tls.ca, self.tls.cert, self.tls.key)} if self.tls else ()
        return ContainerProcess(self.binary.etcd, self._flags(), log=log, shared=[self.data_dir, *keys])

    def _flags(self) -> list[str]:
        client = f"{self.url}"
        return [
            *self._place().as_flags(),
            f"--data-dir={self.data_dir}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls=http://{ports.HOST}:{self._peer_port}",
            "--initial-cluster-state=new",
            "--logger=zap",
            *flags.tls_files(self.tls),
            *self._settings,
            *self._extra_args,
        ]

    def _place(self) -> Membership:
        return self._membership or alone(self._peer_port)

    def _failure(self, what: str) -> Unavailable:
        tail = self.log_tail()
        status = self._process.exit_status if self._process is not None else None
        ended = f" (exit status {status})" if status is not None else ""
        log = f"; the end of its log:\n{tail}" if tail else ""
        return Unavailable(f"{what}{ended}{log}", endpoints=(self.endpoint,), operation="start", detail=tail)
