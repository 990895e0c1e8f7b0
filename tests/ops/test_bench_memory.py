"""What the memory bench makes of a worker's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.bench.memory import leak, record
from ops.bench.memory.plot import bands
from ops.commands.common import load_settings

MIB = 2**20


def sample(t: float, held: int, level: str = "open", rows: int = 0, peak: int = 0) -> dict[str, Any]:
    return {
        "what": "sample", "t": t, "active": held // 2, "cache": 0, "peak": 0, "footprint": held,
        "peak_footprint": peak, "level": level, "rows": rows,
    }  # fmt: skip


def made(tmp_path: Path, lines: list[dict[str, Any]]) -> record.Record:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"what": "cut off')
    return record.read(path)


LINES = [
    {"what": "limits", "t": 0.0, "budget": 1000},
    sample(1.0, 2000),
    sample(11.5, 700, "queue", 3),
    sample(12.0, 800, "queue", 3, peak=1040),
    sample(13.0, 600, "open", 0),
    {"what": "requantized", "t": 13.0, "model": "m", "bits_before": 32, "bits": 8, "freed": 3 * MIB, "seconds": 0.5,
     "canary": None},
]  # fmt: skip


def test_a_log_tells_budget_levels_and_overshoot(tmp_path: Path) -> None:
    """High waters of steps count, the first ten seconds do not; a line that was cut off is passed over."""
    told = made(tmp_path, LINES)
    assert told.budget == 1000
    assert record.seconds_at(told) == {"open": 10.5, "queue": 1.5, "shrink": 0.0, "pause": 0.0}
    assert record.overshoot(told) == pytest.approx(0.04)
    assert record.greatest(told) == 2000
    assert record.requantizations(told)[0]["freed_mb"] == 3.0
    assert record.last_bits(told) == 8


def test_what_lies_outside_a_run_is_left_out(tmp_path: Path) -> None:
    """A run is a stretch of the log."""
    assert [point.t for point in record.between(made(tmp_path, LINES), 11.0, 12.5).points] == [11.5, 12.0]


def test_forecasts_count_after_the_warm_up() -> None:
    """Of 54 batches four count; three of them lie within 15 %, and the lowest is 20 % too low."""
    wild = [{"predicted": 1, "measured": 100, "rest": 0}] * 50
    counted = [{"predicted": p, "measured": 100, "rest": 50} for p in (80, 95, 100, 110)]
    found = record.accuracy(wild + counted)
    assert found is not None
    assert (found.batches, found.within_15_pct, found.lowest) == (4, 0.75, -0.2)
    assert record.accuracy(wild) is None


def test_bands_join_readings_of_one_level(tmp_path: Path) -> None:
    """A stretch of one level is one band, to the reading that ends it."""
    assert bands(made(tmp_path, LINES).points) == [(11.5, 13.0, "queue")]


def test_growth_is_told_from_noise() -> None:
    """Flat is a least that stays, however far single readings stray; a steady rise is not."""
    noisy = [(100 * MIB, (200 + 30 * (i % 3)) * MIB) for i in range(20)]
    rising = [(100 * MIB, (200 + 2 * i) * MIB) for i in range(20)]
    assert leak.judge(noisy, 2000)["flat"]
    found = leak.judge(rising, 2000)
    assert not found["flat"]
    assert found["footprint_growth_mb"] > 20


def test_the_leak_bench_drives_a_real_engine() -> None:
    """A narrow model with random weights loads, runs batches of mixed shapes, and is read once it is cleared."""
    found = leak.run(load_settings(), 100, tell=lambda line: None)
    (held,) = found["footprint_mb"]
    assert found["batches"] == 100
    assert held > 20
