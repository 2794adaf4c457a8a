"""The program around the commands: the table, options on both sides, lazy loading, usage errors."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from leasekeeper import __version__
from leasekeeper.cli.program import COMMANDS, program
from leasekeeper.cli.run import RunCommand
from leasekeeper.cli.run import command as run
from leasekeeper.cli.settings import Settings
from tests.commands import call, environment

CTX = click.Context(program, **program.context_settings)
NAMES = program.list_commands(CTX)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_says_what_the_command_says(name: str) -> None:
    """The help page lists every command without loading it, so its names must be the commands' own."""
    command = program.get_command(CTX, name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert len(COMMANDS[name][1]) < 70


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name: str) -> None:
    """--help and -h work on every command, end well, and show a description and the options."""
    shown = call(name, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"Usage: leasekeeper {name}")
    assert call(name, "-h").out == shown.out


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["nonsense"], []])
def test_help_and_version_load_neither_grpc_nor_rich(args: list[str]) -> None:
    """What answers no question about etcd starts in a moment: nothing heavy is imported."""
    code = (
        "import sys; from leasekeeper.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'grpc', 'rich', 'google.protobuf', 'asyncio'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env=environment("", ""),
    )
    assert "AssertionError" not in done.stderr
    assert done.returncode == (2 if args in ([], ["nonsense"]) else 0)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str) -> None:
    """The variable that the reference names prints the shell's script, and bash is told the commands that fit."""
    scripted = _completing(f"{shell}_source")
    assert "_LEASEKEEPER_COMPLETE" in scripted.stdout
    if shell == "bash":
        told = _completing("bash_complete", COMP_WORDS="leasekeeper ver", COMP_CWORD="1")
        assert told.stdout == "plain,verify\n"


def _completing(what: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment("", "", {"_LEASEKEEPER_COMPLETE": what, **more})
    code = "from leasekeeper.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50, env=env
    )


def test_version() -> None:
    """--version is the package's."""
    assert call("--version").out == f"leasekeeper {__version__}\n"


def test_no_command_shows_the_help_page() -> None:
    """Without a command the help page goes to stderr, with the code of a usage error."""
    done = call()
    assert done.code == 2
    assert "Commands:" in done.err
    assert done.out == ""


def test_a_typing_error_is_answered_with_the_nearest_command() -> None:
    """An unknown command is one line that names the one that was meant."""
    done = call("verfiy")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "did you mean verify?" in done.err


@pytest.mark.parametrize(
    "args",
    [
        ["ls", "--nonsense"],
        ["ls", "a", "b"],
        ["show"],
        ["show", ""],
        ["show", "a\nb"],
        ["show", "x" * 256],
        ["show", "\udcff"],
        ["ls", "\udcff"],
        ["verify", "a"],
        ["verify", "a", "0"],
        ["verify", "a", "-1"],
        ["verify", "a", "seven"],
        ["verify", "a", "9223372036854775808"],
        ["verify", "a", str(1 << 44)],
        ["break", "a"],
        ["break", "a", "--token", "x"],
        ["break", "a", "--token", "1.5"],
        ["epoch", "bump", "--above", "x"],
        ["epoch", "nonsense"],
        ["acquire", "a", "--ttl", "0"],
        ["acquire", "a", "--ttl", "-3"],
        ["acquire", "a", "--ttl", "nan"],
        ["acquire", "a", "--ttl", "inf"],
        ["acquire", "a", "--ttl", "999999999"],
        ["acquire", "a", "--ttl", "0.5"],
        ["acquire", "a", "--timeout", "nan"],
        ["acquire", "a", "--timeout", "99999999999"],
        ["acquire", "a", "--note", "x" * 1025],
        ["run", "a"],
        ["run", "a", "--"],
        ["run", "a", "--", ""],
        ["run", "a", "--grace", "soon", "--", "true"],
        ["run", "a", "--grace", "100000", "--", "true"],
        ["run", "a", "--ttl", "0", "--", "true"],
        ["ls", "--endpoints", ""],
        ["ls", "--endpoints", "a:b"],
        ["ls", "--endpoints", "a:0"],
        ["ls", "--endpoints", "http://a,https://b"],
        ["ls", "--endpoints", ","],
        ["ls", "--namespace", "a\x00b"],
        ["ls", "--cacert", "/nonexistent"],
        ["ls", "--cacert", "/"],
        ["ls", "--cert", "/nonexistent"],
        ["ls", "--key", "/nonexistent"],
        ["ls", "--user", "nobody"],
        ["ls", "-o", "yaml"],
        ["ls", "--timeout", "soon"],
        ["--timeout", "soon", "ls"],
        ["dev", "--port", "0"],
        ["dev", "--port", "x"],
    ],
)
def test_wrong_input_is_one_line_and_two(args: list[str]) -> None:
    """Wrong names, tokens, durations, endpoints and files end with 2 and one line, before etcd is asked."""
    done = call(*args, endpoint="127.0.0.1:9")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("leasekeeper: ")
    assert done.err.count("\n") == 1
    assert "bug in leasekeeper" not in done.err


@pytest.mark.parametrize(
    "variables",
    [
        {"LEASEKEEPER_OUTPUT": "yaml"},
        {"LEASEKEEPER_TIMEOUT": "soon"},
        {"LEASEKEEPER_ENDPOINTS": "a:b"},
        {"LEASEKEEPER_CACERT": "/nonexistent"},
        {"ETCDCTL_CACERT": "/nonexistent"},
        {"LEASEKEEPER_KEY": "/nonexistent"},
        {"LEASEKEEPER_PASSWORD": "alone"},
        {"ETCDCTL_PASSWORD": "alone"},
        {"LEASEKEEPER_HOLDER": "a\nb"},
        {"LEASEKEEPER_NAMESPACE": "a\nb"},
    ],
)
def test_wrong_variables_are_refused_like_options(variables: dict[str, str]) -> None:
    """A variable with a wrong value ends with 2 and one line that names the variable."""
    for command in ("ls", "doctor"):
        done = call(command, endpoint="127.0.0.1:9", env=variables)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.startswith(f"leasekeeper: {next(iter(variables))}")


def test_a_wrong_option_is_named() -> None:
    """The line begins with the option, not with a variable that has a value as well."""
    done = call("ls", "--endpoints", "ftp://x", endpoint="127.0.0.1:9")
    assert done.err.startswith("leasekeeper: --endpoints='ftp://x': expected ")


@pytest.mark.parametrize(
    ("args", "begins"),
    [
        (["ls", "--cacert", "/nonexistent"], "--cacert='/nonexistent': expected a readable file"),
        (["ls", "--cert", "/nonexistent"], "--cert='/nonexistent': expected a readable file"),
        (["ls", "--key", "/nonexistent"], "--key='/nonexistent': expected a readable file"),
        (["ls", "--namespace", "a\nb"], "--namespace='a\\nb': expected"),
        (["ls", "--timeout", "99999999999"], "--timeout='99999999999': expected from 0 to 1000000000 seconds"),
        (["acquire", "a", "--ttl", "25h"], "--ttl='25h': expected seconds from 1 to 86400"),
        (["run", "a", "--ttl", "100ms", "true"], "--ttl='100ms': expected seconds from 1 to 86400"),
        (["run", "a", "--grace", "25h", "true"], "--grace='25h': expected at most 86400 seconds"),
        (["acquire", "a", "--note", "x" * 1025], "--note='xxx"),
        (["break", "a", "--token", "0"], "--token='0': expected a whole number"),
        (["verify", "a", "0"], "TOKEN='0': expected a whole number"),
        (["epoch", "bump", "--above", "x"], "--above='x': expected a whole number"),
        (["epoch"], "missing command: show or bump (see: leasekeeper epoch --help)"),
        (["demo", "-o", "json"], "--output='json': expected table"),
        (["-o", "json", "demo"], "--output='json': expected table"),
    ],
)
def test_an_error_speaks_of_what_was_typed(args: list[str], begins: str) -> None:
    """The option as it is spelled and the value as it was given; never an argument of the library, or a page of help."""
    done = call(*args, endpoint="127.0.0.1:9")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"leasekeeper: {begins}")
    assert len(done.err) < 250


def test_a_file_without_its_other_half(tmp_path: Path) -> None:
    """A certificate without a key is told by the names of the options."""
    file = tmp_path / "x.pem"
    file.write_text("-----BEGIN X-----\n-----END X-----\n")
    done = call("ls", "--cert", str(file), endpoint="127.0.0.1:9")
    assert (done.code, done.err) == (2, f"leasekeeper: --cert={str(file)!r}: expected --key with it\n")


def test_the_variable_that_has_the_value_is_named() -> None:
    """Under `run` LEASEKEEPER_KEY is the claim's key in etcd: a wrong private key then came from another variable."""
    env = {
        "LEASEKEEPER_KEY": "leasekeeper/default/lease/n/1",
        "LEASEKEEPER_TOKEN": "7",
        "ETCDCTL_KEY": "/nonexistent",
    }
    assert call("ls", endpoint="127.0.0.1:9", env=env).err.startswith("leasekeeper: ETCDCTL_KEY='/nonexistent': ")


def test_a_password_without_a_user_is_told_what_is_missing() -> None:
    """What is missing is said, not that the library was given None."""
    done = call("ls", endpoint="127.0.0.1:9", env={"LEASEKEEPER_PASSWORD": "s3cret"})
    assert done.err == "leasekeeper: LEASEKEEPER_PASSWORD: expected a user with it, by --user or LEASEKEEPER_USER\n"


def test_a_password_is_never_shown() -> None:
    """What is wrong with a user or password is said without the password."""
    done = call("ls", "--user", "me:s3cret", endpoint="127.0.0.1:9", env={"LEASEKEEPER_TIMEOUT": "50ms"})
    assert done.code == 69
    assert "s3cret" not in done.err


def settings(*args: str) -> Settings:
    """The settings that a command is given."""
    found: list[Settings] = []

    @click.command("probe", cls=type(run).__mro__[1])
    @click.pass_context
    def probe(ctx: click.Context) -> None:
        found.append(Settings.of(ctx))

    before, after = args[: args.index("probe")], args[args.index("probe") + 1 :]
    parent = program.make_context("leasekeeper", [*before, "probe", *after])
    probe.invoke(probe.make_context("probe", list(after), parent=parent))
    return found[0]


def test_global_options_stand_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option before the command counts, the same one after it counts more, and each wins over its variable."""
    for name in ("ENDPOINTS", "NAMESPACE", "TIMEOUT", "OUTPUT"):
        monkeypatch.delenv(f"LEASEKEEPER_{name}", raising=False)
    monkeypatch.setenv("LEASEKEEPER_NAMESPACE", "from-variable")
    monkeypatch.setenv("LEASEKEEPER_TIMEOUT", "9")
    got = settings("--endpoints", "one", "--timeout", "1", "probe", "--endpoints", "two", "-o", "json")
    assert got.keeper_arguments() == {"endpoints": "two", "namespace": "from-variable"}
    assert (got.timeout_s, got.as_json) == (1.0, True)
    assert settings("--namespace", "given", "probe").keeper_arguments()["namespace"] == "given"
    assert settings("probe").timeout_s == 9.0


def test_a_user_with_a_password_wins_over_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """--user NAME:PASSWORD is one thing: a password in a variable belongs to another user."""
    monkeypatch.setenv("LEASEKEEPER_PASSWORD", "of-somebody-else")
    got = settings("--user", "me:with:colons", "probe")
    assert {k: got.keeper_arguments()[k] for k in ("user", "password")} == {"user": "me", "password": "with:colons"}
    assert settings("--user", "me", "probe").keeper_arguments()["password"] == "of-somebody-else"


def test_a_command_to_copy_has_the_options_and_no_password() -> None:
    """The exact command that a message offers reaches the same etcd, quoted for a shell, without the password."""
    got = settings("--endpoints", "a:1,b:2", "--user", "me:s3cret", "--namespace", "x y", "probe")
    line = got.command_line("break", "job's", token="7")
    assert line == """leasekeeper --endpoints a:1,b:2 --namespace 'x y' --user me break 'job'"'"'s' --token 7"""


def test_a_command_to_copy_works_for_a_name_that_looks_like_an_option() -> None:
    """Such a name stands behind ``--``, and click takes it for the name."""
    words = shlex.split(settings("probe").command_line("break", "-dash", token="7"))
    assert words == ["leasekeeper", "break", "--token", "7", "--", "-dash"]
    command = program.get_command(CTX, "break")
    assert command is not None
    assert command.make_context("break", words[2:], parent=CTX).params["name"] == "-dash"


@pytest.mark.parametrize(
    ("args", "name", "cmd", "ttl"),
    [
        (["n", "--", "cmd"], "n", ["cmd"], None),
        (["n", "cmd"], "n", ["cmd"], None),
        (["--ttl", "5", "n", "--", "cmd", "--ttl", "9"], "n", ["cmd", "--ttl", "9"], 5.0),
        (["n", "--ttl", "5", "--", "cmd", "-h"], "n", ["cmd", "-h"], 5.0),
        (["n", "--ttl=5", "cmd", "--ttl", "9"], "n", ["cmd", "--ttl", "9"], 5.0),
        (["n", "rsync", "--timeout", "3", "-o", "json"], "n", ["rsync", "--timeout", "3", "-o", "json"], None),
        (["--", "n", "cmd", "--ttl", "9"], "n", ["cmd", "--ttl", "9"], None),
        (["n", "--", "--", "cmd"], "n", ["--", "cmd"], None),
        (["n", "--", "cmd", "--", "x"], "n", ["cmd", "--", "x"], None),
        (["--", "-n", "cmd"], "-n", ["cmd"], None),
        (["n", "--", "-x"], "n", ["-x"], None),
    ],
)
def test_run_leaves_the_commands_options_alone(args: list[str], name: str, cmd: list[str], ttl: float | None) -> None:
    """Options count on both sides of NAME; from the command's first word on nothing is ours, with or without --."""
    assert isinstance(run, RunCommand)
    ctx = run.make_context("run", list(args), parent=CTX)
    assert (ctx.params["name"], list(ctx.params["cmd"]), ctx.params["ttl"]) == (name, cmd, ttl)
