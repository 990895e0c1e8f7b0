"""Which jobs go first: decided from what is known of their input."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from worker.flow import SHORT_BYTES, is_small


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
