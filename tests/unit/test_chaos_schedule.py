"""What a storm is made of: the schedule of a seed, the weather, the target, and the report."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from leasekeeper.cli.chaos import FAULTS as FAULTS_OF_HELP
from leasekeeper.cli.chaos import LEASE_FAULTS, RUNS_FAULTS
from leasekeeper.errors import ConfigError, StaleToken
from leasekeeper.testing.chaos import KINDS, Story, Told, Weather, judge, make_schedule
from leasekeeper.testing.chaos.effects import Ledger, load_target
from leasekeeper.testing.chaos.faults import FAULTS
from leasekeeper.testing.chaos.picture import page
from leasekeeper.testing.chaos.records import Attempt, Operation, read_lines
from leasekeeper.testing.chaos.report import command_of, write
from leasekeeper.testing.chaos.schedule import WORKLOADS
from leasekeeper.testing.trial import Target, Writer


def timeline(html: str) -> ET.Element:
    """The lanes of a page, without their names."""
    return ET.fromstring(html[html.rindex("<svg") : html.rindex("</svg>") + 6])


def test_a_seed_decides_everything() -> None:
    """B29: the same seed makes the same faults, another one others, over leases and over runs."""
    for workload in WORKLOADS:
        one, same, other = (
            make_schedule(s, seconds=60, ttl_s=3, replicas=3, members=3, workload=workload) for s in (1, 1, 2)
        )
        assert one == same
        assert one != other


def test_all_kinds_come_up_and_all_can_be_done() -> None:
    """B27: every fault has a name and its place in some storm, and there is somebody who does it."""
    shape = {"seconds": 120.0, "ttl_s": 3.0, "replicas": 3, "members": 3}
    for workload in WORKLOADS:
        seen = {b.kind for s in range(60) for b in make_schedule(s, workload=workload, **shape)}  # type: ignore[arg-type]
        assert seen == {kind.name for kind in KINDS.values() if workload in kind.workloads and not kind.by_name}
    assert set(KINDS) == set(FAULTS)


def test_what_strikes_by_name_alone() -> None:
    """B30: a fault after which some promises cannot be kept is in no storm that does not ask for it."""
    shape = {"seconds": 60.0, "ttl_s": 3.0, "replicas": 3, "members": 3}
    seen = {b.kind for s in range(20) for b in make_schedule(s, kinds=("restore-unraised",), **shape)}  # type: ignore[arg-type]
    assert seen == {"restore-unraised"}
    with pytest.raises(ConfigError, match="halt-all"):
        make_schedule(1, kinds=("halt-all",), **shape)  # type: ignore[arg-type]


def test_the_help_names_all_kinds() -> None:
    """The command knows the kinds without loading what does them."""
    assert tuple(KINDS) == (*FAULTS_OF_HELP, *LEASE_FAULTS, *RUNS_FAULTS)


def test_lanes() -> None:
    """Faults of one replica, and faults of the cluster, follow one another; all are over in time."""
    for seed in range(20):
        blows = make_schedule(seed, seconds=60, ttl_s=3, replicas=2, members=3)
        lanes: dict[object, float] = {}
        for blow in blows:
            lane = "cluster" if KINDS[blow.kind].lane == "cluster" else blow.target
            assert blow.at_s >= lanes.get(lane, 0.0)
            assert blow.until_s <= 60.001
            lanes[lane] = blow.until_s
        assert sum(blow.kind == "restore" for blow in blows) <= 1


def test_chosen_kinds() -> None:
    """B27: only the kinds that were asked for; each can strike alone."""
    blows = make_schedule(1, seconds=60, ttl_s=3, replicas=2, members=3, kinds=("kill", "compaction"))
    assert {blow.kind for blow in blows} == {"kill", "compaction"}
    for kind in KINDS.values():
        workload = next(iter(sorted(kind.workloads)))
        alone = [
            make_schedule(s, seconds=60, ttl_s=3, replicas=2, members=3, kinds=(kind.name,), workload=workload)
            for s in range(9)
        ]
        assert {blow.kind for blows in alone for blow in blows} == {kind.name}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seed": -1}, "seed"),
        ({"seconds": 1.0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 10}, "replicas"),
        ({"members": 2}, "members"),
        ({"ttl_s": 1.0}, "ttl"),
        ({"ttl_s": 2.5}, "ttl"),
        ({"kinds": ("rain",)}, "rain"),
    ],
)
def test_no_weather(fields: dict[str, Any], named: str) -> None:
    """What makes no storm is refused before anything is started, and named."""
    with pytest.raises(ConfigError, match=named):
        Weather(**fields)


@pytest.mark.parametrize(
    "named",
    ["nowhere:x", "json:nothing", "tests.programs.exits:x", "json", "tests.programs.targets:NOT_CALLABLE", ":x"],
)
def test_no_target(named: str) -> None:
    """A name that leads to nothing callable is one clear error."""
    with pytest.raises(ConfigError, match="target"):
        load_target(named)


def test_the_usual_target() -> None:
    """It applies the fence rule: older and equal-but-other are refused."""
    target = load_target("")
    target.write("thing", Writer("r0", 5, "a"), "w")
    target.write("thing", Writer("r0", 5, "a"), "w")
    for token, claim in ((4, "z"), (5, "b")):
        with pytest.raises(StaleToken):
            target.write("thing", Writer("r1", token, claim), "w")
    target.write("thing", Writer("r1", 6, "b"), "w")


def test_the_ledger_has_every_attempt(tmp_path: Path) -> None:
    """Accepted, refused, and failed by the target: all are written down, in order, before they are answered."""

    def write(resource: str, lease: Writer, value: str) -> bool:
        if lease.token == 2:
            raise StaleToken(token=2, highest=3, holder="somebody")
        if lease.token == 3:
            raise OSError("the disk is full")
        return lease.token != 4

    ledger = Ledger(tmp_path / "ledger", Target.of(write, StaleToken), 0.0)
    request = {"claim": "c", "holder": "r0", "work": "w", "gate_s": 1.0}
    answers = [ledger.write({**request, "token": token})["accepted"] for token in (1, 2, 3, 4)]
    ledger.close()
    assert answers == [True, False, False, False]
    lines = [Attempt(**line) for line in read_lines(tmp_path / "ledger")]
    assert [(line.number, line.token, line.accepted, line.error) for line in lines] == [
        (1, 1, True, ""),
        (2, 2, False, ""),
        (3, 3, False, "OSError: the disk is full"),
        (4, 4, False, ""),
    ]


def test_a_target_that_ends_its_thread(tmp_path: Path) -> None:
    """Also a target that calls sys.exit has answered: the write is in the ledger, as one of which nobody knows."""

    def write(resource: str, lease: Writer, value: str) -> bool:
        raise SystemExit(4)

    ledger = Ledger(tmp_path / "ledger", Target.of(write, StaleToken), 0.0)
    answer = ledger.write({"claim": "c", "holder": "r0", "work": "w", "gate_s": 1.0, "token": 1})
    ledger.close()
    assert answer == {"accepted": False, "error": "SystemExit: 4"}
    assert ledger.busy_s == 0.0


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A kill in the middle of a line loses that line and no other."""
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\nnot json\n{"a": 2}\n{"a": 3')
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}]
    assert list(read_lines(tmp_path / "none")) == []


def test_labels_do_not_overlap() -> None:
    """Each label ends before the next one in its row begins: what has no room is shortened, or left to the tooltip."""
    story = Story(seed=1, ttl_s=3.0, replicas=9, seconds=300.0, calm_s=300.0, end_s=320.0)
    for lane in ("etcd", *(f"r{number}" for number in range(9))):
        kinds = [kind.name for kind in KINDS.values() if kind.lane == ("cluster" if lane == "etcd" else "replica")]
        chance = Random(lane)
        for _ in range(100):
            at_s = chance.uniform(0, 299)
            story.operations.append(Operation(at_s, at_s + 1, chance.choice(kinds), lane))
    drawn = timeline(
        page({"versions": {}, "command": "", "figures": {"faults": {}}, "left_out": {}}, story, judge(story))
    )
    rows: dict[str, list[tuple[float, str]]] = {}
    for text in drawn.iter("{http://www.w3.org/2000/svg}text"):
        if text.get("class") is None:
            rows.setdefault(str(text.get("y")), []).append((float(str(text.get("x"))), text.text or ""))
    assert len(rows) == 2 + 9
    for row in rows.values():
        row.sort()
        assert len(row) > 5
        assert all(x + 6.2 * len(text) < after for (x, text), (after, _) in pairwise(row))
        assert all(len(text) >= 5 or text in KINDS for _, text in row)


def test_the_report(tmp_path: Path) -> None:
    """report.json says what was asked for and found; index.html shows it, needs nothing else, and trusts no text."""
    weather = Weather(seed=4, seconds=30, kinds=("kill",), target="m:t")
    hostile = "<script>alert(1)</script>"
    story = Story(seed=4, ttl_s=3.0, replicas=3, seconds=30.0, calm_s=20.0, end_s=30.0, versions={"etcd": "3.4.23"})
    story.told = [
        Told(1.0, "r0.1", "owner", 5, "c"),
        Told(2.0, "r0.1", "SUSPENDED", 5),
        Told(4.0, "r0.1", "LOST", 5, "c", hostile),
    ]
    story.attempts = [
        Attempt(1, 1.5, "r0.1", 5, "c", "w", 1.4, accepted=True),
        Attempt(2, 5.0, "r0.1", 4, "c", "w", 1.4, accepted=False),
    ]
    story.operations = [Operation(1.0, 3.0, "kill", "r0"), Operation(1.0, 3.0, "restore", "etcd", (5,), hostile)]
    story.left_out = {"no-space": hostile}
    data, page = write(tmp_path / "new" / "folder", weather, story, judge(story))
    report = json.loads(data.read_text())
    assert report["verdict"] == "violated"  # nobody got a turn after the faults
    assert (
        report["command"]
        == "leasekeeper chaos --seed 4 --seconds 30 --replicas 3 --members 3 --ttl 3 --fault kill --target m:t"
    )
    assert command_of(weather) == report["command"]
    assert report["figures"]["attempts"] == 2
    assert report["versions"]["etcd"] == "3.4.23"
    html = page.read_text()
    assert "<script" not in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    drawn = timeline(html)
    titles = [title.text or "" for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("r0.1 owns with token 5") for title in titles)
    assert any("SUSPENDED" in title for title in titles)
    assert any("is LOST" in title for title in titles)
    assert any("write 2" in title and "refused" in title for title in titles)
    # Each violation is listed, and leads to its mark.
    assert 'href="#v1"' in html
    assert [mark.get("id") for mark in drawn.iter("{http://www.w3.org/2000/svg}g")][:1] == ["v1"]
