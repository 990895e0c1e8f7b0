"""A real worker with the stand-in engine for the examples, one for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.fake import FakeConfig
from queueing.client import Client
from tests.support.redis_server import RedisServer, servers
from tests.support.worker_process import WorkerProcess, speech, write_wav

WEBHOOK_SECRET = "whsec_" + "c2VjcmV0" * 6


@dataclass(frozen=True)
class Stage:
    """What an example needs: a server, a worker that is ready, a recording, and its transcript."""

    url: str
    socket: Path
    clip: Path
    text: str
    worker: WorkerProcess


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """On a server of its own: other tests empty theirs."""
    folder = tmp_path_factory.mktemp("stage")
    clip = write_wav(folder / "clip.wav", speech(2.0))
    name, binary = next(iter(servers().items()))
    redis_server = RedisServer(name, binary)
    worker = WorkerProcess(
        redis_server.url,
        folder,
        fake=FakeConfig(),
        webhook_secret=WEBHOOK_SECRET,
        webhook_schemes="http",
        webhook_private_hosts="true",
        rq_queues="audio",
    )
    try:
        worker.wait_ready()
        with Client(redis_server.url) as client:
            text = client.result(client.submit(clip), timeout=60).text
        yield Stage(redis_server.url, redis_server.socket_path, clip, text, worker)
    finally:
        worker.close()
        redis_server.close()
