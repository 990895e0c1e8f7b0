"""A real server and a real worker with real weights, for all tests of speech together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops import stack
from queueing.client import Client


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """A client of a worker that is ready with tiny.en."""
    with (
        stack.running(model="tiny.en") as running,
        Client(running.url, queue=stack.QUEUE, model="tiny.en") as ours,
    ):
        yield ours
