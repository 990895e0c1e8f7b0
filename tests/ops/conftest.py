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
import rq
from rq.serializers import JSONSerializer

from engine.fake import FakeConfig
from ops.embedded import EmbeddedServer
from queueing.client import Client
from queueing.connect import connect
from queueing.errors import JobFailed
from queueing.keys import Keys
from queueing.protocol import Queue
from tests.ops.stand_in import StandIn, clean_environment
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until
from tests.support.watched import LANES, Watched
from tests.support.worker_process import WorkerProcess, speech, write_wav


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


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A worker on a server of its own, for tests that only look: eleven jobs done over three lanes, one failed; two
    with a webhook, of which one was delivered and one given up; two from RQ, of which one was done and one refused."""
    folder = tmp_path_factory.mktemp("watched")
    with EmbeddedServer(folder / "redis", durable=True) as server, Receiver() as takes, Receiver(410) as gone:
        worker = WorkerProcess(
            server.url,
            folder,
            fake=FakeConfig(step_s=0.01),
            name="studio",
            canary="true",
            cache_dir=folder / "cache",
            webhook_secret="whsec_" + "c2VjcmV0" * 6,
            webhook_schemes="http",
            webhook_private_hosts="true",
            rq_queues="audio",
        )
        try:
            worker.wait_ready()
            clip = write_wav(folder / "clip.wav", speech(2.0))
            with Client(server.url) as client:
                for job in [client.submit(clip, lane=LANES[number % 3]) for number in range(11)]:
                    client.result(job, timeout=60)
                with pytest.raises(JobFailed):
                    client.result(client.submit(folder / "none.wav"), timeout=60)
                for receiver in (takes, gone):
                    client.result(client.submit(clip, webhook=receiver.url), timeout=60)
            with connect(server.url) as redis:
                audio = rq.Queue("audio", connection=redis, serializer=JSONSerializer)
                done = audio.enqueue("decibatch.transcribe", kwargs={"input": str(clip)})
                refused = audio.enqueue("os.system", kwargs={"input": str(clip)})
                for job, end in ((done, "finished"), (refused, "failed")):
                    wait_until(lambda job=job, end=end: job.get_status().value == end, f"{end} in RQ")
            seen = Watched(worker, server.url)
            wait_until(lambda: seen.status()["canary"]["models"], "the canary's result")
            wait_until(lambda: seen.status()["queue"], "a look at the queue")
            wait_until(
                lambda: seen.status()["queue"]["webhooks_given_up"], "the webhook given up in the status"
            )
            wait_until(lambda: worker.health().get("failures"), "the failure in the health")
            wait_until(lambda: worker.health()["rq"]["finished"], "the end of RQ's job in the health")
            yield seen
            worker.terminate()
        finally:
            worker.close()
