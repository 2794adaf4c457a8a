"""Every block of code in the README and in docs/ runs as it stands, against a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.testing import EtcdServer
from tests.docs.blocks import RUN, Block, read
from tests.docs.page import Reader

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page: read(page) for page in PAGES}
SKIPPED = [(page, block) for page, blocks in BLOCKS.items() for block in blocks if block.skipped]


def name_of(page: Path) -> str:
    """The page as a reader knows it."""
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """A reader of the page under test, with an etcd that no other page uses."""
    with EtcdServer(fsync=False) as etcd:
        tools = Path(etcd.binary.etcdctl or etcd.binary.etcd).parent
        one = Reader(request.param, tmp_path, etcd.endpoint, tools)
        yield one
        one.close()


def runs(block: Block) -> bool:
    """True for a block that makes a page worth a server."""
    return block.language in RUN and not block.skipped


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "reader",
    [page for page, blocks in BLOCKS.items() if any(map(runs, blocks))],
    ids=name_of,
    indirect=True,
)
def test_the_page_runs(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """B32, B34: a reader who follows the page from top to bottom sees what it shows, in tests with the plugin as well."""
    monkeypatch.chdir(reader.directory)
    for block in BLOCKS[reader.page]:
        reader.follow(block)


@pytest.mark.parametrize("tutorial", ["first-run", "test-your-lock"])
def test_a_tutorial_is_run_whole(tutorial: str) -> None:
    """B32, B34: the run that is killed and goes on, the tests with the plugin: no block of them is left out, or only shown."""
    blocks = BLOCKS[ROOT / f"docs/tutorial/{tutorial}.md"]
    assert [block.line for block in blocks if runs(block)]
    assert not [block.line for block in blocks if block.skipped]
    told = "\n".join(block.text for block in blocks if runs(block))
    assert ("SIGKILL" if tutorial == "first-run" else "pytest -q") in told


@pytest.mark.parametrize(
    ("page", "block"),
    SKIPPED,
    ids=[f"{name_of(page)}:{block.line}" for page, block in SKIPPED],
)
def test_skipped_blocks_are_listed(page: Path, block: Block) -> None:
    """A block that does not run shows up in the report with its reason."""
    pytest.skip(f"{name_of(page)}:{block.line}: {block.skipped}")
