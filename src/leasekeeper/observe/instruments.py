"""What a metric is: its name, its kind, its labels. What is counted is said where it is counted."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Kind", "Metric"]


class Kind(Enum):
    """What a metric is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. Histograms are in seconds."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str
