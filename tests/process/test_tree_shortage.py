"""A machine that refuses: no process, no descriptor, a /proc that is somebody else's. Never is that taken for "nothing runs"."""

from __future__ import annotations

import os
import resource
import subprocess

from leasekeeper.cli.tree.control import TreeState
from tests.process.trees import FAMILY_SIZE, SRC, family, grow, hear, marked, python, settle

_NO_FORK = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
from leasekeeper.cli.tree import sentinel
def refused(): raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
os.fork = refused
told = os.dup(1)
os.write(told, b"told ")
sentinel._fork(told)
"""

_FOREIGN = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.readlink = lambda path: "1" if os.getpid() != 1 else "2"
from leasekeeper.cli.tree import proc
print(proc.listable(), proc.read(os.getpid()), proc.children(os.getppid()), list(proc.descendants(os.getppid())))
"""


def test_no_process_for_the_guardian(mark: str) -> None:
    """The command is told why there is no guardian, in the words of the kernel, and nobody sees a traceback."""
    ran = subprocess.run(python(_NO_FORK, SRC), capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 70
    assert ran.stdout == 'told ["Broken", "no guardian could be started: Resource temporarily unavailable"]\n'
    assert ran.stderr == ""


def test_a_proc_of_another_pid_namespace_is_none() -> None:
    """Its numbers mean other processes, so nothing is read from it: neither a tree that seems empty nor a stranger."""
    ran = subprocess.run(python(_FOREIGN, SRC), capture_output=True, text=True, timeout=30, check=False)
    assert (ran.stdout, ran.stderr) == ("False None [] []\n", "")


def test_a_guardian_that_can_open_no_file_kills_the_tree(mark: str) -> None:
    """G5: a tree that cannot be listed is not called frozen; the guardian gives up and the tree dies."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        hear(tree, lambda: tree.state is TreeState.RUNNING)
        opened = len(os.listdir(f"/proc/{tree.guardian_pid}/fd"))
        resource.prlimit(tree.guardian_pid, resource.RLIMIT_NOFILE, (opened, opened))
        tree.hold()
        result = tree.wait(30)
    assert result is not None
    assert result.killed_by_us
    assert "Too many open files" in result.fault
    assert not marked(mark)
