"""The reader of pages itself: it must not let a wrong page pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PageError, commands, read
from tests.docs.page import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader whose page needs no etcd."""
    one = Reader(tmp_path / "page.md", tmp_path, "127.0.0.1:12345")
    yield one
    one.close()


def follow(reader: Reader, text: str) -> Reader:
    """Write the page and follow all its blocks."""
    reader.page.write_text(text)
    for block in read(reader.page):
        reader.follow(block)
    return reader


def test_blocks_share_names_and_setup_is_hidden(reader: Reader) -> None:
    """Blocks of one page see each other's names, and those of a hidden setup."""
    text = "<!-- setup\nx = 1\n-->\n\n```python\ny = x + 1\n```\n\n```python\nassert y == 2\n```\n"
    assert follow(reader, text).names["y"] == 2


def test_a_failing_block_fails(reader: Reader) -> None:
    """An exception in a block comes out, with the line of the page in its traceback."""
    with pytest.raises(ZeroDivisionError) as caught:
        follow(reader, "# Page\n\n```python\n1 / 0\n```\n")
    assert caught.traceback[-1].lineno + 1 == 4


def test_top_level_await_uses_one_loop(reader: Reader) -> None:
    """Blocks that await run on one event loop for the whole page."""
    block = "```python\nloops.append(asyncio.get_running_loop())\nawait asyncio.sleep(0)\n```\n"
    setup = "<!-- setup\nimport asyncio\nloops = []\n-->\n"
    follow(reader, f"{setup}{block}{block}```python\nassert loops[0] is loops[1]\n```\n")


def test_raises_is_checked(reader: Reader) -> None:
    """A block marked to raise must raise just that."""
    follow(reader, "<!-- raises: KeyError -->\n```python\n{}[1]\n```\n")
    with pytest.raises(AssertionError, match="says it raises KeyError"):
        follow(reader, "<!-- raises: KeyError -->\n```python\n{}\n```\n")
    with pytest.raises(IndexError):
        follow(reader, "<!-- raises: KeyError -->\n```python\n[][0]\n```\n")


def test_output_of_python_is_compared(reader: Reader) -> None:
    """An output block is compared with what the block before it printed; dots match anything."""
    page = "```python\nprint('token', 17, 'held')\n```\n\n<!-- output -->\n```text\n{}\n```\n"
    follow(reader, page.format("token ... held"))
    with pytest.raises(AssertionError, match="it printed"):
        follow(reader, page.format("token ... lost"))


def test_console_output_and_status_are_compared(reader: Reader) -> None:
    """Each command's output and exit status are compared; one shell runs the whole block."""
    follow(reader, "```console\n$ name=a\n$ echo $name \\\n> b\na b\n```\n")
    follow(reader, "<!-- exit: 3 -->\n```console\n$ (exit 3)\n```\n")
    with pytest.raises(AssertionError, match="exit status 3, not 0"):
        follow(reader, "```console\n$ (exit 3)\n$ true\n```\n")
    with pytest.raises(AssertionError, match="it printed"):
        follow(reader, "```console\n$ echo a\nb\n```\n")
    with pytest.raises(AssertionError, match="ended early"):
        follow(reader, "```console\n$ exit 0\n$ true\n```\n")


def test_bash_blocks_stop_at_the_first_error(reader: Reader) -> None:
    """A bash block fails when any of its commands does."""
    with pytest.raises(AssertionError, match="exit status 1"):
        follow(reader, "```bash\nfalse\ntrue\n```\n")


def test_background_commands_end_with_their_block(reader: Reader) -> None:
    """What a block leaves running is ended, so it cannot hold up the page."""
    follow(reader, "```console\n$ sleep 1000 &\n$ echo started\nstarted\n```\n")


def test_files_are_written_with_the_real_endpoint(reader: Reader) -> None:
    """A file block is written, not run, and speaks to the running server."""
    follow(reader, "<!-- file: app/x.py -->\n```python\nconnect('127.0.0.1:2379')\n```\n")
    assert (reader.directory / "app/x.py").read_text() == "connect('127.0.0.1:12345')\n"


def test_skipped_blocks_do_not_run(reader: Reader) -> None:
    """A skipped block and its shown output are passed over."""
    skipped = "<!-- skip: needs a network card -->\n```python\n1 / 0\n```\n"
    assert follow(reader, f"{skipped}<!-- output -->\n```text\nx\n```\n").output is None


def test_blocks_that_need_a_package_run_where_it_is(reader: Reader) -> None:
    """A block that needs an optional package runs where that is installed, and is skipped with this reason elsewhere."""
    follow(reader, "<!-- needs: no_such_package -->\n```python\n1 / 0\n```\n")
    assert read(reader.page)[0].skipped == "needs the package no_such_package"
    with pytest.raises(ZeroDivisionError):
        follow(reader, "<!-- needs: pytest -->\n```python\n1 / 0\n```\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nx\n", "has no end"),
        ("```\nx\n```\n", "language ''"),
        ("```py\nx\n```\n", "language 'py'"),
        ("<!-- skip: no -->\n```python\nx\n```\n", "say why"),
        ("<!-- skip -->\n```python\nx\n```\n", "say why"),
        ("<!-- skips: of good reason -->\n```python\nx\n```\n", "no marker 'skips'"),
        ("<!-- skip: of good reason -->\nprose\n```python\nx\n```\n", "right before"),
        ("<!-- skip: of good reason -->\n", "belongs to no block"),
        ("<!-- skip: of good\nreason -->\n```python\nx\n```\n", "ends on its own line"),
        ("<!-- raises: KeyError -->\n```console\n$ x\n```\n", "for Python"),
        ("<!-- exit: 1 -->\n```python\nx\n```\n", "for console"),
        ("<!-- skip: of good reason -->\n```text\nx\n```\n", "only shown"),
        ("<!-- setup\nx\n", "setup comment has no end"),
    ],
)
def test_pages_that_cannot_be_judged_are_errors(tmp_path: Path, text: str, complaint: str) -> None:
    """No block can hide behind a typing error in its fence or its marker."""
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError, match=complaint):
        read(page)


def test_a_console_block_begins_with_a_command(tmp_path: Path) -> None:
    """Commands without a prompt would never run, so they are an error."""
    page = tmp_path / "page.md"
    page.write_text("```console\nleasekeeper ls\n```\n")
    with pytest.raises(PageError, match="begins with a"):
        commands(read(page)[0])
