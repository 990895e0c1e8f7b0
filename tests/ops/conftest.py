"""A server for the tests of the command line, and the command line as a user runs it."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.embedded import EmbeddedServer
from queueing.keys import Keys
from queueing.protocol import Queue
from tests.ops.stand_in import StandIn, clean_environment


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server for all; every test has a queue of its own on it."""
    with EmbeddedServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def queue_name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def stand_in(server: EmbeddedServer, queue_name: str) -> Iterator[StandIn]:
    worker = StandIn(server.url, Queue(Keys(queue_name)))
    stop = threading.Event()
    thread = threading.Thread(target=worker.serve, args=(stop,))
    thread.start()
    yield worker
    stop.set()
    thread.join()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(server: EmbeddedServer, queue_name: str) -> Run:
    """Runs ``decibatch`` as a user does, in a process of its own."""

    def call(*args: str | Path, **extra: Any) -> subprocess.CompletedProcess[str]:
        env = clean_environment(
            **{"DECIBATCH_REDIS_URL": server.url, "DECIBATCH_QUEUE": queue_name, **extra.pop("env", {})}
        )
        command = [sys.executable, "-m", "decibatch", *map(str, args)]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False, **extra
        )

    return call
