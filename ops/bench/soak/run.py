"""One soak: submit, hold, run some, cancel the rest, let the results expire, look at what is left."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.fake import FakeConfig
from ops import health, stack
from ops.bench.faults.run import cut_clips
from ops.bench.soak import hands
from ops.bench.soak.memory import Curve, Sampler
from ops.bench.soak.report import Report, Server
from ops.embedded import EmbeddedServer
from ops.exits import Trouble
from ops.guarded import Guarded
from queueing.connect import connect
from queueing.job import State
from queueing.keys import Keys

MODEL = "tiny.en"
TOTAL = 16_000_000_000
HELD = FakeConfig(memory_total=TOTAL, base_bytes=int(0.85 * 0.75 * TOTAL))
"""At rest the engine holds so much that the budget is too small: the worker lives, and takes nothing."""
QUICK = FakeConfig(step_s=0.0, decode_steps=1)
KEYS = Keys(stack.QUEUE)
READY_S = 90.0
GRACE_S = 30.0
POLL_S = 0.2
WARM_SHARE = 0.5
"""Of the jobs that are run: before that the worker's pools, buffers and records of the last minutes grow to their size
(the last of them, 4,096 steps and 300 s, after some 10,000 jobs)."""
EXPIRY_S = 300.0
"""How long the server may take to drop what has expired, beyond the time to live."""
RUN_JOBS_PER_S = 10.0
"""Slower than this is stuck."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run."""

    jobs: int = 1_000_000
    run: int = 30_000
    """Jobs that a worker does; the rest is cancelled."""
    seed: int = 1
    clients: int = 2
    hold_s: float = 60.0
    """For which all jobs wait beside an idle worker."""
    ttl_s: int = 30


Tell = Callable[[str], None]


def run(order: Order, tell: Tell = lambda sentence: None) -> Report:
    """Run it. Raises Trouble where a process fails, ServerUnavailable, RedisError."""
    with tempfile.TemporaryDirectory(prefix="decibatch-soak-") as name:
        folder = Path(name)
        clips = [str(clip) for clip in cut_clips(folder)]
        with EmbeddedServer(folder / "redis") as server, connect(server.url) as redis:
            return Soak(order, folder, server, redis, clips, tell).run()


class Soak:
    """One soak on one server."""

    def __init__(  # noqa: PLR0917
        self, order: Order, folder: Path, server: EmbeddedServer, redis: Any, clips: list[str], tell: Tell
    ) -> None:
        self._order = order
        self._folder = folder
        self._url = server.url
        self.redis = redis
        self._clips = clips
        self._tell = tell
        self._seconds: dict[str, float] = {}

    def run(self) -> Report:
        # A life of a worker before anything is measured: scripts and keys that stay, stay from here on.
        with self._worker("idle", HELD) as (worker, log):
            start = self._used()
            with Sampler(worker.pid) as sampler:
                submitted = self._all_hands("submit")
                self._wait("hold", self._order.hold_s)
                waiting = self._used()
                idle = sampler.curve()
            _check(worker, log)
        running = self._run_some()
        self._all_hands("cancel")
        self.expire()
        return self._report(submitted, Server(start, waiting, self._used()), idle, running)

    def _report(self, submitted: int, server: Server, idle: Curve, running: Curve) -> Report:
        counts = {name.decode(): int(value) for name, value in self._counts().items() if name != b"rate"}
        told = self.redis.info("server")
        return Report(
            jobs=self._order.jobs,
            submitted=submitted,
            ends={
                state.value: counts[state.value]
                for state in State
                if state.terminal and state.value in counts
            },
            still_waiting=counts.get("waiting", 0),
            server=server,
            idle=idle,
            running=running,
            keys_left=tuple(sorted(key.decode() for key in self.redis.scan_iter(count=1000))),
            seconds=self._seconds,
            version=f"{told.get('server_name', 'redis')} {told.get('valkey_version', told['redis_version'])}",
            seed=self._order.seed,
        )

    def _counts(self) -> dict[bytes, bytes]:
        counts: dict[bytes, bytes] = self.redis.hgetall(KEYS.counts)
        return counts

    def _used(self) -> int:
        return int(self.redis.info("memory")["used_memory"])

    def _done(self) -> int:
        return int(self.redis.hget(KEYS.counts, "done") or 0)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = round(time.monotonic() - began, 1)
        self._tell(f"{name}: {self._seconds[name]} s, {self._used() / 1e6:.1f} MB on the server")

    def _wait(self, name: str, seconds: float) -> None:
        with self._phase(name):
            threading.Event().wait(seconds)

    @contextlib.contextmanager
    def _worker(self, name: str, fake: FakeConfig) -> Iterator[tuple[Guarded, Path]]:
        settings = {
            **fake.environment(),
            "DECIBATCH_ENGINE_COMMAND": f"{sys.executable} -m engine.fake",
            "DECIBATCH_WORKER_NAME": name,
            "DECIBATCH_MEMORY_MIN_BITS": "0",
        }
        log = self._folder / f"{name}.log"
        env = stack.environment(self._url, MODEL, self._folder / name, settings)
        with log.open("wb") as output:
            command = [sys.executable, "-m", "decibatch", "worker"]
            worker = Guarded(command, output=output, grace_s=GRACE_S, env=env)
        try:
            self._wait_settled(worker, log, name)
            yield worker, log
        finally:
            worker.stop()

    def _wait_settled(self, worker: Guarded, log: Path, name: str) -> None:
        """Until it works, or says that it is short of memory."""
        until = time.monotonic() + READY_S
        while not any(one.worker == name and _settled(one) for one in health.read(self._url, stack.QUEUE)):
            _check(worker, log)
            if time.monotonic() > until:
                raise Trouble(f"The worker was not ready within {READY_S:.0f} s: {stack.last_lines(log)}")
            worker.wait(POLL_S)

    def _all_hands(self, what: str) -> int:
        """Clients in processes of their own, each with its share. Raises Trouble where one fails."""
        order = self._order
        bounds = [order.jobs * n // order.clients for n in range(order.clients + 1)]
        env: Mapping[str, str] = {
            **stack.environment(self._url, MODEL, self._folder, {}),
            hands.URL_VARIABLE: self._url,
        }
        with self._phase(what), contextlib.ExitStack() as stop:
            working = []
            for first, end in itertools.pairwise(bounds):
                numbers = [str(number) for number in (order.seed, first, end, order.ttl_s)]
                process = subprocess.Popen(
                    [sys.executable, "-m", "ops.bench.soak.hands", what, *numbers, MODEL, *self._clips],
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                stop.callback(process.wait)
                stop.callback(process.kill)
                working.append(process)
            told = [process.communicate() for process in working]
        for process, (_, errors) in zip(working, told, strict=True):
            if process.returncode:
                raise Trouble(f"A client failed to {what}: {(errors.strip() or 'silently').splitlines()[-1]}")
        return sum(int(output) for output, _ in told)

    def _run_some(self) -> Curve:
        """A worker does as many as were asked for, at least; its memory once it is warm."""
        wanted, warm = self._order.run, int(WARM_SHARE * self._order.run)
        with self._worker("busy", QUICK) as (worker, log), self._phase("run"):
            self._wait_done(warm, worker, log)
            before = self._done()
            with Sampler(worker.pid) as sampler:
                self._wait_done(wanted, worker, log)
                curve = replace(sampler.curve(), jobs=self._done() - before)
        return curve

    def _wait_done(self, count: int, worker: Guarded, log: Path) -> None:
        until = time.monotonic() + READY_S + count / RUN_JOBS_PER_S
        while self._done() < count:
            _check(worker, log)
            if time.monotonic() > until:
                raise Trouble(f"Only {self._done()} of {count} jobs were done: {stack.last_lines(log)}")
            worker.wait(POLL_S)

    def expire(self) -> None:
        """Until the results are gone, or should have been."""
        until = time.monotonic() + self._order.ttl_s + EXPIRY_S
        with self._phase("expire"):
            while self._expiring() and time.monotonic() < until:
                threading.Event().wait(POLL_S)

    def _expiring(self) -> int:
        """Keys that go by themselves, but for those that tell a worker's lives apart: they stay for a month."""
        lives = self.redis.exists(KEYS.life("idle"), KEYS.life("busy"))
        return int(self.redis.info("keyspace").get("db0", {}).get("expires", 0)) - int(lives)


def _settled(worker: health.WorkerHealth) -> bool:
    return worker.working or "budget_too_small" in worker.reasons


def _check(worker: Guarded, log: Path) -> None:
    status = worker.status()
    if status is not None:
        raise Trouble(f"The worker ended with status {status}: {stack.last_lines(log)}")
