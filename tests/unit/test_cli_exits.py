"""Exit codes and error lines: every error has its code, and none is a traceback or more than one line."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys

import click
import pytest

from leasekeeper import canonical, errors, run_errors, schema_errors
from leasekeeper.cli.exits import LOST, NEEDS_A_PERSON, Interrupted, code_of, report
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runs import alert

CODES = {
    errors.LeaseLost: 76,
    errors.StaleToken: 76,
    errors.LeaseSuspended: 69,
    errors.NotAcquired: 75,
    errors.Unavailable: 69,
    errors.OutOfSpace: 69,
    errors.OutcomeUnknown: 69,
    errors.Misuse: 2,
    errors.ConfigError: 2,
    canonical.TooMuch: 2,
    errors.AuthError: 77,
    errors.StoreRewound: 2,
    run_errors.RunHalted: 76,
    run_errors.InDoubt: 78,
    run_errors.Quarantined: 78,
    run_errors.StaleCheckpoint: 69,
    run_errors.QuotaReserved: 69,
    run_errors.Conflict: 78,
    run_errors.Drift: 78,
    run_errors.ArgumentsChanged: 2,
    run_errors.InputChanged: 2,
    run_errors.CorruptState: 2,
    schema_errors.SchemaTooNew: 2,
    schema_errors.SchemaUnknown: 2,
    schema_errors.MigrationFailed: 2,
    run_errors.SigningKeyMissing: 2,
    run_errors.BlobMissing: 2,
    run_errors.RunRewound: 78,
    run_errors.AnchorSkewed: 78,
    run_errors.NotSerialisable: 2,
    run_errors.ExportKept: 73,
    run_errors.RecordTooLarge: 2,
    run_errors.RunTooLong: 2,
    run_errors.TransactionTooLarge: 2,
    run_errors.IllegalTransition: 2,
    run_errors.RunFinished: 2,
    run_errors.RunPruned: 2,
    run_errors.StepBusy: 2,
    run_errors.StepsOpen: 2,
}


def concrete(kind: type[LeasekeeperError]) -> set[type[LeasekeeperError]]:
    """Every error below ``kind`` that is raised as such."""
    below = {found for one in kind.__subclasses__() for found in concrete(one)}
    return below | ({kind} if kind not in (LeasekeeperError, errors.StopWork, errors.TryLater, errors.FixIt) else set())


def test_every_error_has_its_exit_code() -> None:
    """The table of exit codes covers the whole tree of errors."""
    assert {kind: code_of(kind()) for kind in concrete(LeasekeeperError)} == CODES


def test_what_needs_a_person_has_the_code_of_the_alerts() -> None:
    """A14, A16: commands and programs that use `runs.alert` end alike where a person is needed, 78, or they are not let, 76."""
    for kind in concrete(LeasekeeperError):
        for code in (NEEDS_A_PERSON, LOST):
            assert (code_of(kind()) == code) == (alert.exit_code(kind()) == code), kind
    assert (alert.NEEDS_A_PERSON, alert.NOT_LET) == (NEEDS_A_PERSON, LOST)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (Interrupted(signal.SIGTERM), 143),
        (Interrupted(signal.SIGHUP), 129),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
    ],
)
def test_what_the_user_did_is_not_an_error(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C, a signal and a closed pipe end a command in silence, with the code of their signal."""
    assert report(error, "leasekeeper ls") == code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (click.UsageError("no such\noption"), 2, "leasekeeper ls --help"),
        (errors.Unavailable("etcd did not\n answer"), 69, "leasekeeper doctor"),
        (errors.OutcomeUnknown(), 69, "leasekeeper show"),
        (errors.ConfigError(field="ttl", value=0, expected="more"), 2, "ttl=0: expected more"),
        (OSError(errno.ENOSPC, "No space left on device"), 74, "could not be written"),
        (OSError(errno.EMFILE, "Too many open files"), 71, "Too many open files; look at ulimit -a"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 71, "the system refuses"),
        (MemoryError(), 71, "out of memory"),
        (ZeroDivisionError("by\n\x1b[31mzero"), 70, r"bug in leasekeeper: ZeroDivisionError: by \x1b[31mzero"),
    ],
)
def test_errors_are_one_line_that_helps(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each error is one line on stderr, safe for a terminal, with what to do."""
    assert report(error, "leasekeeper ls") == code
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.startswith("leasekeeper: ")
    assert words in shown
    assert "Traceback" not in shown


def test_a_log_in_an_error_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a log of many lines the last thing said is shown; whatever the error, the line ends in time."""
    log = '{"msg":"noise"}\n' * 40 + '{"level":"fatal","msg":"discovery failed","error":"mkdir: denied"}'
    failed = errors.Unavailable(f"etcd ended; the end of its log:\n{log}", operation="start", detail=log)
    assert report(failed, "leasekeeper dev") == 69
    assert capsys.readouterr().err == "leasekeeper: etcd ended; the end of its log: discovery failed: mkdir: denied\n"
    for error in (errors.Unavailable("x" * 5000), ZeroDivisionError("x" * 5000)):
        report(error, "leasekeeper ls")
        assert len(capsys.readouterr().err) < 650


def test_the_traceback_is_there_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASEKEEPER_DEBUG=1, which the line on a bug names, shows where it came from."""
    monkeypatch.setenv("LEASEKEEPER_DEBUG", "1")
    assert report(ZeroDivisionError("x"), "leasekeeper ls") == 70
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: x" in shown
    assert "LEASEKEEPER_DEBUG=1" in shown


def test_a_ctrl_c_that_came_wrapped_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """While modules are loaded Python may wrap a KeyboardInterrupt in an error of its own: 130 and no message all the same."""
    wrapped = RuntimeError("Error calling __set_name__")
    wrapped.__cause__ = KeyboardInterrupt()
    assert report(wrapped, "leasekeeper ls") == 130
    assert capsys.readouterr().err == ""


def test_a_ctrl_c_before_anything_has_begun_is_silent() -> None:
    """While the command line is loaded it ends with 130 as well, without a traceback."""
    code = """
import sys
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "leasekeeper.cli.program": raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from leasekeeper.cli import main
main(["ls"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
