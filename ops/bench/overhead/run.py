"""Rounds in turn: in each, everybody has the server and the machine alone, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from engine.fake import FakeConfig
from ops import stack
from ops.bench.environments import PeerUnavailable
from ops.bench.overhead.peers import OURS, Contestant, interpreter, version_of
from ops.bench.overhead.sides.measure import URL_VARIABLE
from ops.embedded import EmbeddedServer
from ops.exits import Trouble
from ops.guarded import Guarded
from queueing.connect import connect

MODEL = "tiny.en"
ROOT = Path(__file__).resolve().parents[3]
GRACE_S = 10.0
RATE = 16_000
NO_OP = FakeConfig(step_s=0.0, decode_steps=1)
"""The engine: a process of its own, as always, whose steps take no time."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run."""

    peers: tuple[Contestant, ...]
    jobs: int = 1000
    rounds: int = 7
    idle: int = 200
    """Jobs sent one at a time."""
    timeout_s: float = 240.0
    """Of one contestant in one round."""
    with_media: bool = True
    """Whether ours is also measured with real decoding."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant in one round. Latencies are in seconds."""

    answered: int
    seconds: float
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.answered / self.seconds


@dataclass(slots=True)
class Entry:
    """One contestant, over the rounds."""

    who: Contestant
    python: Path | None
    trouble: str = ""
    rounds: list[Measured] = field(default_factory=list)


def run(order: Order, *, cache: Path, tell: Callable[[str], None] = lambda sentence: None) -> dict[str, Any]:
    """Measure and report; see :func:`report`.

    A peer that cannot be installed or does not work becomes a row that says so.

    :param cache: folder under which the peers' environments are kept.
    :raises Trouble: our own worker failed.
    """
    ours = OURS if order.with_media else OURS[:1]
    entries = [_entry(who, cache, tell) for who in (*ours, *order.peers)]
    with tempfile.TemporaryDirectory(prefix="decibatch-overhead-") as name:
        folder = Path(name)
        recording = _recording(folder)
        with EmbeddedServer(folder / "redis", durable=True) as server:
            for number in range(order.rounds):
                # There and back: whom a slow change of the machine favours in one round, it hinders in the next.
                for entry in entries if number % 2 == 0 else reversed(entries):
                    if not entry.trouble:
                        tell(f"round {number + 1} of {order.rounds}: {entry.who.name}")
                        _one_round(entry, order, server.url, folder, recording)
    return report(entries, order)


def _entry(who: Contestant, cache: Path, tell: Callable[[str], None]) -> Entry:
    try:
        return Entry(who, interpreter(who, cache, tell))
    except PeerUnavailable as exc:
        tell(f"{who.name} is not available: {exc}")
        return Entry(who, None, str(exc))


def _recording(folder: Path) -> Path:
    """One second in which a decoder finds something to keep."""
    from ops.bench.faults.run import cut_clips

    return cut_clips(folder)[0]


def _one_round(entry: Entry, order: Order, url: str, folder: Path, recording: Path) -> None:
    with connect(url) as redis:
        redis.flushall()
    try:
        entry.rounds.append(_measure(entry, order, url, folder, recording))
    except Trouble as exc:
        if entry.who.media is not None:
            raise
        entry.trouble = str(exc)


def _measure(entry: Entry, order: Order, url: str, folder: Path, recording: Path) -> Measured:
    assert entry.python is not None
    env = environment(entry.who, url, folder)
    arguments = [str(order.jobs), str(order.idle)]
    if entry.who.media is not None:
        arguments.append(str(recording))
    with _worker(entry, env, folder) as log:
        try:
            ran = subprocess.run(
                [str(entry.python), *entry.who.side, *arguments],
                env=env,
                capture_output=True,
                text=True,
                timeout=order.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise Trouble(f"{entry.who.name} was not done after {order.timeout_s:.0f} s") from exc
        if ran.returncode:
            said = (ran.stderr.strip() or "nothing").splitlines()[-1][:300]
            raise Trouble(f"{entry.who.name} failed: {said}; its worker: {stack.last_lines(log, 2)[:300]}")
        told = json.loads(ran.stdout.splitlines()[-1])
    return Measured(told["answered"], told["seconds"], tuple(told["latencies"]))


def environment(who: Contestant, url: str, folder: Path) -> Mapping[str, str]:
    """For its worker and for its client; the server's address is in it, for nobody else to read."""
    if who.media is not None:
        settings = {
            **NO_OP.environment(),
            "DECIBATCH_ENGINE_COMMAND": f"{sys.executable} -m engine.fake",
            "DECIBATCH_WORKER_NAME": "overhead",
        }
        env = stack.environment(url, MODEL, folder, settings)
    else:
        env = {**os.environ, "RQ_REDIS_URL": url, "DOCKET_URL": url}
    paths = [str(ROOT)] if who.pins is None else [str(Path(__file__).parent / "sides")]
    return {**env, URL_VARIABLE: url, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def _worker(entry: Entry, env: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """A worker, for one round. That it is ready is seen by the client, whose first jobs do not count."""
    log = folder / f"{entry.who.name}.log"
    with log.open("wb") as output:
        worker = Guarded([str(entry.python), *entry.who.worker], output=output, grace_s=GRACE_S, env=env)
    try:
        yield log
    finally:
        worker.stop()


def report(entries: list[Entry], order: Order) -> dict[str, Any]:
    """``rows``, medians over the rounds with the least and the most, and what they were measured with."""
    first = entries[0].rounds
    return {
        "rows": [_row(entry, first) for entry in entries],
        "jobs": order.jobs,
        "rounds": order.rounds,
        "idle_jobs": order.idle,
        "cpus": os.cpu_count(),
        "server": "embedded, append-only file, fsync every second",
        "work": "no-op on a path; every result read back by the client",
        "ratio": "ours (the first row) / theirs, the median over the rounds",
        "range": "the least and the most of the rounds, which go through the rows there and back in turn",
        "notes": [
            "decibatch: decoding is a stand-in (one prepared spool file), the engine is a process with steps of 0 s",
            "arq and taskiq look every 5 ms and 2 ms for jobs or results, where their defaults are 500 ms and 200 ms",
        ],
    }


def _row(entry: Entry, first: list[Measured]) -> dict[str, Any]:
    who = entry.who
    row: dict[str, Any] = {
        "name": who.name,
        "available": not entry.trouble,
        "version": version_of(who),
        "concurrency": who.concurrency,
        "durable": who.durable,
        "why": who.why,
    }
    if who.media is not None:
        row["media"] = who.media
    if entry.trouble:
        return {**row, "unavailable": entry.trouble, "jobs_per_s": None, "ratio": None, "latency_ms": None}
    ratios = [mine.rate / theirs.rate for mine, theirs in zip(first, entry.rounds, strict=True)]
    rates = [one.rate for one in entry.rounds]
    return {
        **row,
        "answered": min(one.answered for one in entry.rounds),
        "jobs_per_s": round(median(rates), 1),
        "jobs_per_s_range": [round(min(rates), 1), round(max(rates), 1)],
        "ratio": round(median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "latency_ms": {
            "p50": round(median(p50 := _percentiles_ms(entry.rounds, 50)), 2),
            "p50_range": [round(min(p50), 2), round(max(p50), 2)],
            "p99": round(median(p99 := _percentiles_ms(entry.rounds, 99)), 2),
            "p99_range": [round(min(p99), 2), round(max(p99), 2)],
        },
    }


def _percentiles_ms(rounds: list[Measured], percent: int) -> list[float]:
    """Of each round."""
    return [1000 * quantiles(one.latencies, n=100, method="inclusive")[percent - 1] for one in rounds]
