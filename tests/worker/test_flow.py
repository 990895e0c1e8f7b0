"""Which jobs go first: decided from what is known of their input."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from queueing.job import Lane
from worker.flow import SHORT_BYTES, is_small
from worker.offering import is_urgent


def test_small_files_need_not_wait_behind_long_ones(tmp_path: Path) -> None:
    """A regular file of up to a megabyte is small; what is larger, missing, or no file is not."""
    sizes = {"short": SHORT_BYTES, "long": SHORT_BYTES + 1}
    for name, size in sizes.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    os.mkfifo(tmp_path / "pipe")
    names = ("short", "long", "missing", "pipe", ".", "with\0zero")
    found = [asyncio.run(is_small(f"{tmp_path}/{name}")) for name in names]
    assert found == [True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("lane", "pieces", "urgent"),
    [
        (Lane.INTERACTIVE, 12, True),
        (Lane.NORMAL, 1, True),
        (Lane.NORMAL, 2, False),
        (Lane.BULK, 1, False),
    ],
)
def test_somebody_waits_or_it_is_short(lane: Lane, pieces: int, urgent: bool) -> None:
    """Interactive jobs are urgent, of normal ones those of a single piece, bulk work never."""
    assert is_urgent(lane, pieces) is urgent
