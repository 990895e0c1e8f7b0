"""Readings of memory."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import memory


def test_phys_footprint_stands_where_the_header_says() -> None:
    """The footprint is the eighth counter behind the UUID of struct rusage_info_v4, its high water the last but one."""
    counters = list(range(1000, 1035))
    buffer = bytes(16) + struct.pack("=35Q", *counters)
    assert len(buffer) == memory.RUSAGE_INFO_SIZE
    assert memory.parse_rusage(buffer) == (1007, 1033)


def test_a_buffer_that_is_too_short_is_unknown() -> None:
    """A reading that cannot be is 0, which means unknown."""
    assert memory.parse_rusage(bytes(20)) == (0, 0)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max", 8192 * 1024), ("4194304", 4194304), (str(2**63 - 4096), 8192 * 1024), (None, 8192 * 1024)],
)
def test_a_containers_limit_counts(tmp_path: Path, limit: str | None, expected: int) -> None:
    """The total is the least of the machine's memory and the container's limit, if it has one."""
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:        8192 kB\nMemFree:         100 kB\n")
    if limit is not None:
        cgroup.write_text(limit + "\n")
    assert memory.system_total(meminfo, (cgroup,)) == expected


def test_an_unreadable_machine_is_unknown(tmp_path: Path) -> None:
    """Without a source the total is 0."""
    assert memory.system_total(tmp_path / "none", ()) == 0


def test_the_high_water_of_the_footprint_counts_anew(mlx: Any) -> None:
    """A buffer that came and went within a step shows in that step's high water, and not in the next one's."""
    memory.sample_after_step()
    before = memory.footprint()
    np.ones(64 << 20, np.uint8)
    during = memory.sample_after_step()
    after = memory.sample_after_step()
    assert during.peak_footprint - before >= 60 << 20
    assert after.peak_footprint < during.peak_footprint - (40 << 20)


def test_a_sample_follows_what_mlx_holds(mlx: Any) -> None:
    """Active memory and its high water rise with an array, and the high water counts anew after a step."""
    before = memory.sample_after_step()
    array = mlx.zeros((1024, 1024))
    mlx.eval(array)
    during = memory.sample_after_step()
    assert during.active - before.active >= 4 * 1024 * 1024
    assert during.peak >= during.active
    del array
    memory.clear()
    after = memory.sample()
    assert after.active <= during.active - 4 * 1024 * 1024
    assert after.cache == 0
    assert after.footprint > 0 or sys.platform not in ("linux", "darwin")
