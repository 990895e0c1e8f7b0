"""What a worker in trouble says of itself, over HTTP and in Redis. Each test has a worker of its own."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import psutil

from engine.fake import FakeConfig, Poison
from ops.doctor.run import workers_of
from ops.embedded import EmbeddedServer
from ops.health import WorkerHealth
from queueing.client import Client
from queueing.job import State
from tests.support.waiting import wait_until
from tests.support.watched import Watched, emptied, fetch
from tests.support.worker_process import WorkerProcess, speech, write_wav
from worker.pace import FLOOR_S


def test_a_stuck_engine_turns_unready_in_seconds(server: EmbeddedServer, tmp_path: Path) -> None:
    """A step that hangs is told long before its deadline of minutes ends it, over HTTP and in Redis; what comes
    then is left to others."""
    emptied(server)
    worker = WorkerProcess(server.url, tmp_path, fake=FakeConfig(), step_deadline_s=600)
    try:
        worker.wait_ready()
        seen = Watched(worker, server.url)
        with Client(server.url) as client:
            client.result(client.submit(write_wav(tmp_path / "a.wav", speech(2.0))), timeout=30)
            client.submit(write_wav(tmp_path / "b.wav", speech(2.0), Poison.HANG))
            wait_until(lambda: seen.ready()[0] == 503, "not ready", 60.0)
        assert seen.ready()[1]["reasons"] == ["engine_stalled"]
        assert seen.status()["step_s"] >= FLOOR_S  # told in hundredths
        assert seen.status()["engine"]["restarts"] == 0
        assert fetch(seen.address, "/livez")[0] == 200
        assert seen.scrape()["decibatch_engine_stalled"][()] == 1
        wait_until(lambda: worker.health().get("reasons") == ["engine_stalled"], "told in Redis")
        with Client(server.url) as client:
            late = client.submit(write_wav(tmp_path / "c.wav", speech(2.0)))
            told_ms = worker.health()["at_ms"] + 2000
            wait_until(lambda: worker.health()["at_ms"] > told_ms, "some looks at the queue later")
            assert client.status(late).state is State.WAITING
    finally:
        worker.close()


def test_a_worker_without_redis_says_so(tmp_path: Path) -> None:
    """Before it ever reached its server a worker is alive and not ready, and says why."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    worker = WorkerProcess(f"redis://127.0.0.1:{port}/0", tmp_path, fake=FakeConfig())
    try:

        def address() -> str | None:
            found = re.search(r'"address": "([^"]+)"', worker.log.read_text())
            return found[1] if found else None

        where = str(wait_until(address, "the health server"))
        assert fetch(where, "/livez")[0] == 200
        status, _, body = fetch(where, "/readyz")
        assert status == 503
        assert "redis_away" in json.loads(body)["reasons"]
        assert "decibatch_redis_up 0.0" in fetch(where, "/metrics")[2]
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.close()


def test_a_taken_port_does_not_stop_the_work(server: EmbeddedServer, tmp_path: Path) -> None:
    """A worker whose port is taken works without a health server, and its log and its health in Redis say so."""
    emptied(server)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = WorkerProcess(server.url, tmp_path, fake=FakeConfig(), health_port=taken.getsockname()[1])
        try:
            worker.wait_ready()
            assert worker.health()["http"] == ""
            assert "no health server" in worker.log.read_text()
            (warning,) = worker.health()["warnings"]
            assert warning.startswith("no_health_server (127.0.0.1:")
            assert warning.endswith(": address already in use)")
            assert worker.terminate() == 0
        finally:
            worker.close()


def test_it_can_be_switched_off(server: EmbeddedServer, tmp_path: Path) -> None:
    """With the setting off, the worker listens nowhere."""
    emptied(server)
    worker = WorkerProcess(server.url, tmp_path, fake=FakeConfig(), health_server="false")
    try:
        worker.wait_ready()
        assert worker.health()["http"] == ""
        kinds = {one.status for one in psutil.Process(worker.pid).net_connections("inet")}
        assert psutil.CONN_LISTEN not in kinds
    finally:
        worker.terminate()
        worker.close()


def test_slower_than_its_own_best_is_a_warning(server: EmbeddedServer, tmp_path: Path) -> None:
    """A worker that comes up at a fraction of its best says so in health, metrics and doctor; it stays ready."""
    emptied(server)
    told: list[dict[str, Any]] = []
    for step_s in (0.005, 0.2):
        worker = WorkerProcess(
            server.url, tmp_path, fake=FakeConfig(step_s=step_s), canary="true", cache_dir=tmp_path / "cache"
        )
        try:
            worker.wait_ready()
            seen = Watched(worker, server.url)
            wait_until(lambda seen=seen: seen.status()["canary"]["models"], "the canary's result")
            told.append(seen.status())
            slow = seen.scrape()["decibatch_canary_share"][("model", "tiny.en"),]
            assert worker.terminate() == 0
        finally:
            worker.close()
    assert told[0]["warnings"] == []
    assert told[1]["ready"] is True
    assert told[1]["warnings"][0].startswith("slow_engine (tiny.en at ")
    assert slow < 0.5
    finding = workers_of([WorkerHealth("w1", True, (), 0.0, 0.0, told[1])], "main")[0]
    assert finding.verdict == "warn"
    assert "slow_engine" in finding.said
