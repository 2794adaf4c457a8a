"""Links between the pages lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOP = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
PAGES = [page for page in [*TOP, *sorted(DOCS.rglob("*.md"))] if page.exists()]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[tuple[Path, str]]:
    """Each link of a page into this tree, as the file it names and the anchor in it."""
    found = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(prose(page))]
    return {title.replace(" ", "-") for title in titles}


@pytest.mark.checkout
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of this tree, and every anchor a heading of it."""
    wrong = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert not wrong


@pytest.mark.checkout
def test_the_readme_reads_the_same_without_the_tree() -> None:
    """A package index shows the README alone: it names paths of the tree, and links to none."""
    assert links(ROOT / "README.md") == []


def test_every_page_can_be_reached_from_the_index() -> None:
    """A reader who begins at docs/index.md can get to every page below docs/ by links."""
    reached, queue = set(), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        queue += [target for target, _ in links(page) if target.is_relative_to(DOCS)]
    assert set(DOCS.rglob("*.md")) <= reached
