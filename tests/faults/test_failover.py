"""A primary dies and its replica takes its place, behind one address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis

from engine.fake import FakeConfig
from ops.bench.faults.proxy import Handle, Switchboard
from queueing.client import Client
from queueing.errors import ServerUnavailable, UnknownJob
from queueing.job import State
from queueing.keys import Keys
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

KEYS = Keys("main")
SECONDS = FakeConfig(step_s=0.2, decode_steps=10)
"""A chunk takes two seconds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary, its replica, the address by which clients and workers know whichever is in service, and the way
    by which the replica follows."""

    primary: RedisServer
    replica: RedisServer
    address: Handle
    following: Handle

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.address.port}/0?socket_timeout=1"

    def in_step(self) -> None:
        """Returns once the replica has all that was written."""
        with self.primary.connect() as client:
            assert client.execute_command("WAIT", 1, 20_000) == 1

    def fail_over(self) -> None:
        """The primary dies; the address leads to the replica, which does not take writes yet."""
        self.primary.kill()
        self.following.cut()
        self.address.lead_to(self.replica.socket_path)

    def promote(self) -> None:
        with self.replica.connect() as client:
            client.replicaof("NO", "ONE")

    def refusals(self) -> int:
        """Commands that the replica has refused because it is one."""
        with self.replica.connect() as client:
            return int(client.info("errorstats").get("errorstat_READONLY", {}).get("count", 0))


@pytest.fixture
def pair(redis_server: RedisServer, board: Switchboard) -> Iterator[Pair]:
    primary = redis_server.another("--repl-diskless-sync-delay", "0")
    following = board.line(primary.socket_path)
    replica = redis_server.another("--replicaof", "127.0.0.1", str(following.port))
    try:
        with replica.connect() as client:
            wait_until(
                lambda: client.info("replication")["master_link_status"] == "up", "the replica follows"
            )
        yield Pair(primary, replica, board.line(primary.socket_path), following)
    finally:
        replica.close()
        primary.close()


@pytest.fixture
def worker(pair: Pair, tmp_path: Path) -> Iterator[WorkerProcess]:
    """One job at a time, and short leases."""
    worker = WorkerProcess(pair.url, tmp_path, fake=SECONDS, name="w1", lease_s=1, credits=1)
    yield worker
    worker.close()


@pytest.fixture
def client(pair: Pair) -> Iterator[Client]:
    with Client(pair.url, patience_s=30, poll_s=0.5) as client:
        yield client


def wait_in_engine(worker: WorkerProcess) -> None:
    wait_until(lambda: worker.health().get("running"), "a job in the engine")


def ends(server: redis.Redis, job_id: str) -> list[bytes]:
    """Final events of a job."""
    types = [fields[b"type"] for _, fields in server.xrange(KEYS.events(job_id))]
    return [kind for kind in types if kind in (b"done", b"failed", b"dead", b"cancelled", b"expired")]


def test_what_the_replica_had_is_done(pair: Pair, worker: WorkerProcess, client: Client, clip: Path) -> None:
    """What ran and what waited at the failover is done, once each; that the replica takes no writes at first is borne,
    and what ran is not run again."""
    running = client.submit(clip)
    wait_in_engine(worker)
    waiting = client.submit(clip)
    pair.in_step()
    pair.fail_over()
    wait_until(lambda: pair.refusals() > 0, "a refused write")
    pair.promote()
    assert client.result(running, timeout=30).attempt == 1
    assert client.result(waiting, timeout=30).text
    with pair.replica.connect() as server:
        assert (ends(server, running), ends(server, waiting)) == ([b"done"], [b"done"])
        assert server.hget(KEYS.counts, "done") == b"2"
    assert worker.process.poll() is None


def test_what_the_replica_had_not_is_reported(
    pair: Pair, worker: WorkerProcess, client: Client, clip: Path
) -> None:
    """A job that had not reached the replica is unknown, to the client and in the worker's log; an end that had not
    is made again, once and the same; what comes afterwards is done."""
    ended = client.submit(clip)
    wait_in_engine(worker)
    engine = psutil.Process(worker.engine_pid())
    engine.suspend()  # so that nothing ends before its time
    pair.in_step()
    pair.following.go_dead()
    engine.resume()
    seen = client.result(ended, timeout=30)
    lost = client.submit(clip)
    wait_until(lambda: client.status(lost).state is State.RUNNING, "the job runs")
    engine.suspend()
    pair.fail_over()
    pair.promote()
    told = "redis lost a job in our hands"
    wait_until(
        lambda: any(lost in line and told in line for line in worker.log.read_text().splitlines()), told
    )
    engine.resume()
    with pytest.raises(UnknownJob):
        client.result(lost, timeout=30)
    again = client.result(ended, timeout=30)
    assert (again.text, again.attempt) == (seen.text, 2)
    assert client.result(client.submit(clip), timeout=30).text
    with pair.replica.connect() as server:
        assert ends(server, ended) == [b"done"]
        assert server.hget(KEYS.counts, "done") == b"2"


def test_a_primary_without_its_replica_takes_nothing(pair: Pair, clip: Path) -> None:
    """With min-replicas-to-write set, a job that no replica would have is refused with the reason, and accepted as
    soon as one is back."""
    with pair.primary.connect() as server:
        server.config_set("min-replicas-to-write", 2)
        with Client(pair.url, patience_s=0) as hasty, pytest.raises(ServerUnavailable, match="replicas"):
            hasty.submit(clip)
        server.config_set("min-replicas-to-write", 1)
        with Client(pair.url, patience_s=30) as client:
            assert client.status(client.submit(clip)).state is State.WAITING
