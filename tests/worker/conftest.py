"""Workers and recordings for the tests of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.fake import FakeConfig
from queueing.client import Client
from tests.support.worker_process import WorkerProcess, speech, write_wav

StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(redis_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Start workers with the stand-in engine; none outlives the test."""
    workers: list[WorkerProcess] = []

    def start(name: str = "w1", *, fake: FakeConfig | None = None, **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(redis_url, tmp_path, fake=fake or FakeConfig(), name=name, **settings)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of speech."""
    return write_wav(tmp_path_factory.mktemp("clips") / "clip.wav", speech(2.0))
