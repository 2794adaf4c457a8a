"""Every command on runs: wrong input and an etcd that does not answer end with one line and the right code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs",), "missing command"),
        (("runs", "shwo", "a/b"), "did you mean show?"),
        (("runs", "show"), "RUN"),
        (("runs", "show", "x"), "RUN='x': expected workflow/id"),
        (("runs", "show", "a/b/c"), "RUN='a/b/c': expected workflow/id"),
        (("runs", "show", "a/b\n"), "RUN='a/b\\n': expected"),
        (("runs", "show", f"a/{'x' * 101}"), "at most 100 characters"),
        (("runs", "show", "\udcff/b"), "expected"),
        (("runs", "ls", "a\nb"), "PREFIX='a\\nb'"),
        (("runs", "explain"), "say RUN, or --file"),
        (("runs", "explain", "a/b", "--file", "x"), "say RUN, or --file"),
        (("runs", "explain", "--file", "/nonexistent"), "--file='/nonexistent': expected a file that can be read"),
        (("runs", "explain", "--file", "/"), "--file='/': expected a file that can be read"),
        (("runs", "verify", "a/b", "--keys", "/nonexistent"), "--keys='/nonexistent': expected a file"),
        (("runs", "verify", "a/b", "--keys", __file__), f"--keys, {__file__}='something else': expected"),
        (("runs", "state", "a/b", "--at", "-1"), "--at"),
        (("runs", "state", "a/b", "--at", "x"), "--at"),
        (("runs", "resolve", "a/b"), "--evidence"),
        (("runs", "resolve", "a/b", "s"), "(see: leasekeeper runs resolve --help)"),
        (("runs", "resolve", "a/b", "--evidence", "x"), "say which STEP"),
        (("runs", "resolve", "a/b", "s", "--evidence", "x"), "say --applied or --not-applied"),
        (("runs", "resolve", "a/b", "s", "--applied", "--not-applied", "--evidence", "x"), "not both"),
        (("runs", "resolve", "a/b", "s", "--applied", "--evidence", " "), "--evidence=' ': expected what you saw"),
        (("runs", "resolve", "a/b", "s", "--lift-quarantine", "--evidence", "x"), "about the whole run"),
        (("runs", "resolve", "a/b", "s", "--not-applied", "--result", "1", "--evidence", "x"), "--result goes with"),
        (
            ("runs", "resolve", "a/b", "s", "--applied", "--result", "{", "--evidence", "x"),
            "--result='{': expected JSON",
        ),
        (("runs", "prune"), "say RUN"),
        (("runs", "prune", "a/b"), "say --exported FILE"),
        (("runs", "prune", "a/b", "--exported", "/nonexistent"), "--exported='/nonexistent': expected a file"),
        (("runs", "prune", "a/b", "--exported", __file__), "a good export"),
        (("runs", "prune", "a/b", "--finished-before", "1h", "--exported", "x"), "say RUN"),
        (("runs", "prune", "--finished-before", "soon", "--exported", "x"), "--finished-before='soon'"),
        (("runs", "keygen"), "--out"),
        (("runs", "keygen", "--out", "/nonexistent/k"), "--out='/nonexistent/k': expected a new file"),
        (("halt",), "say SCOPE"),
        (("halt", "order/*"), "say --reason"),
        (("halt", "a*b", "--reason", "x"), "SCOPE='a*b': expected"),
        (("halt", "order", "--reason", "x"), "SCOPE='order': expected"),
        (("halt", "*", "--list"), "say SCOPE, or --list"),
        (("unhalt",), "SCOPE"),
        (("unhalt", "a/b/c"), "SCOPE='a/b/c': expected"),
    ],
)
def test_wrong_input_is_one_line_and_two(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Wrong names, files, numbers and combinations end with 2 and one line in the words that were typed; etcd is not asked."""
    done = call(*words, endpoint="127.0.0.1:9", namespace="n")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("leasekeeper: ")
    assert done.err.count("\n") == 1
    assert "bug in leasekeeper" not in done.err
    assert said in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "ls"),
        ("runs", "show", "a/b"),
        ("runs", "explain", "a/b"),
        ("runs", "verify", "a/b"),
        ("runs", "state", "a/b"),
        ("runs", "resolve", "a/b", "s", "--applied", "--evidence", "x"),
        ("halt", "a/b", "--reason", "x"),
        ("halt", "--list"),
        ("unhalt", "a/b"),
    ],
)
def test_without_etcd(words: tuple[str, ...]) -> None:
    """When etcd does not answer it is one line and 69, never what was true once."""
    done = call(*words, endpoint="127.0.0.1:9", namespace="n", env={"LEASEKEEPER_TIMEOUT": "200ms"})
    assert (done.code, done.out, done.err.count("\n")) == (69, "", 1)
