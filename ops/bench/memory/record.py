"""A worker's memory log, read and judged. Pure: lines in, figures out."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEVELS = ("open", "queue", "shrink", "pause")
WARM_UP_S = 10.0
"""Seconds of a run whose samples do not count for the overshoot."""
WARM_UP_BATCHES = 50
"""Batches after which forecasts count."""


@dataclass(frozen=True, slots=True)
class Point:
    """One reading. Times are the worker's monotonic seconds."""

    t: float
    danger: int
    peak: int
    """The most within the step that it ends, where it ends one; else as ``danger``."""
    rows: int
    level: str


@dataclass(frozen=True, slots=True)
class Record:
    """One life of a worker."""

    lines: tuple[dict[str, Any], ...]
    budget: int

    def of(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["what"] == what]

    @property
    def points(self) -> list[Point]:
        found = []
        for line in self.of("sample"):
            danger = max(line["active"] + line["cache"], line["footprint"])
            peak = max(danger, line["peak_footprint"])
            found.append(Point(line["t"], danger, peak, line["rows"], line["level"]))
        return found


def read(path: Path) -> Record:
    """A log with what stands before its first budget left out."""
    lines = tuple(json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))
    budget = next(line["budget"] for line in lines if line["what"] == "limits")
    return Record(lines, budget)


def between(record: Record, start: float, stop: float) -> Record:
    """Only what happened in this time."""
    return Record(tuple(line for line in record.lines if start <= line["t"] <= stop), record.budget)


def seconds_at(record: Record) -> dict[str, float]:
    """Seconds at each level: a reading holds until the next one."""
    told = dict.fromkeys(LEVELS, 0.0)
    points = record.points
    for point, after in itertools.pairwise(points):
        told[point.level] += after.t - point.t
    return {level: round(seconds, 2) for level, seconds in told.items()}


def greatest(record: Record, *, after_s: float = 0.0) -> int:
    """Most bytes of all readings, the high waters of steps included."""
    points = record.points
    return max((point.peak for point in points if point.t >= points[0].t + after_s), default=0)


def overshoot(record: Record) -> float:
    """By how much of the budget the most that was held lies over it; 0 where it does not."""
    return max(0.0, greatest(record, after_s=WARM_UP_S) / record.budget - 1)


def requantizations(record: Record) -> list[dict[str, Any]]:
    return [
        {
            "model": line["model"],
            "from": line["bits_before"],
            "to": line["bits"],
            "freed_mb": round(line["freed"] / 2**20, 1),
            "seconds": round(line["seconds"], 3),
            "canary": line["canary"],
        }
        for line in record.of("requantized")
    ]


def last_bits(record: Record) -> int:
    """At which the model ran in the end; 0 where none was loaded."""
    told = [line["bits"] for line in record.lines if line["what"] in ("loaded", "requantized")]
    return told[-1] if told else 0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Predicted against measured peaks, after the warm-up."""

    batches: int
    within_15_pct: float
    """Share of them."""
    lowest: float
    """Predicted over measured, less 1, where it was lowest."""
    median: float
    above_rest_within_15_pct: float
    """The same share for what stands above the memory at rest alone, which is the harder half."""


def accuracy(forecasts: list[dict[str, Any]], warm_up: int = WARM_UP_BATCHES) -> Accuracy | None:
    """None where there were no batches after the warm-up."""
    counted = forecasts[warm_up:]
    if not counted:
        return None
    errors = sorted(f["predicted"] / f["measured"] - 1 for f in counted)
    above = [(f["predicted"] - f["rest"]) / max(1, f["measured"] - f["rest"]) - 1 for f in counted]
    return Accuracy(
        batches=len(counted),
        within_15_pct=round(_share(errors), 4),
        lowest=round(errors[0], 4),
        median=round(errors[len(errors) // 2], 4),
        above_rest_within_15_pct=round(_share(above), 4),
    )


def _share(errors: list[float]) -> float:
    return sum(abs(error) <= 0.15 for error in errors) / len(errors)
