"""The report of a storm in files: report.json for programs, index.html with the timeline for people."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from leasekeeper._version import __version__
from leasekeeper.testing.chaos.checker import Verdict
from leasekeeper.testing.chaos.picture import page
from leasekeeper.testing.chaos.records import Story
from leasekeeper.testing.chaos.storm import Weather

__all__ = ["as_json", "command_of", "write"]


def command_of(weather: Weather) -> str:
    """The command that makes the same storm again."""
    words = ["leasekeeper chaos", f"--seed {weather.seed}", f"--seconds {weather.seconds:g}"]
    words += [f"--replicas {weather.replicas}", f"--members {weather.members}", f"--ttl {weather.ttl_s:g}"]
    words += [f"--fault {kind}" for kind in weather.kinds]
    words += [f"--target {weather.target}"] if weather.target else []
    words += [f"--workload {weather.workload}"] if weather.workload != "lease" else []
    return " ".join(words)


def as_json(weather: Weather, story: Story, verdict: Verdict) -> dict[str, Any]:
    """The report as JSON has it: what was asked for, on what, the counts and the verdict."""
    return {
        "format": 1,
        "verdict": verdict.word,
        "unjudged": verdict.unjudged,
        "violations": list(verdict.violations),
        "command": command_of(weather),
        "ended_at_s": story.ended_at_s,
        "seed": weather.seed,
        "seconds": weather.seconds,
        "replicas": weather.replicas,
        "members": weather.members,
        "ttl_s": weather.ttl_s,
        "target": weather.target,
        "workload": weather.workload,
        "versions": {
            "leasekeeper": __version__,
            "python": platform.python_version(),
            "grpcio": version("grpcio"),
            "protobuf": version("protobuf"),
            **story.versions,
        },
        "figures": asdict(verdict.figures),
        "left_out": story.left_out,
        # Tokens as text: readers of JSON may round numbers above 2**53.
        "faults": [asdict(o) | {"tokens": [str(token) for token in o.tokens]} for o in story.operations],
    }


def write(folder: Path, weather: Weather, story: Story, verdict: Verdict) -> tuple[Path, Path]:
    """Write report.json and index.html into ``folder``, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    report = as_json(weather, story, verdict)
    data, picture = folder / "report.json", folder / "index.html"
    data.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    picture.write_text(page(report, story, verdict), encoding="utf-8")
    return data, picture
