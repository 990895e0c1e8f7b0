"""The fixtures of the daemon's tests, and lines that fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.bench.faults.proxy import Switchboard
from tests.worker.conftest import client, clip, start_worker

__all__ = ["client", "clip", "start_worker"]


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with Switchboard() as board:
        yield board
