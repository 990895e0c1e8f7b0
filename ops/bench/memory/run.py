"""Runs the work at each budget, sweeps fixed batch sizes, and checks the forecasts."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops import stack
from ops.bench.memory import load, record
from ops.exits import Trouble
from ops.settings import MIB, Settings
from queueing.client import Client
from queueing.errors import DecibatchError, JobNotDone, ResultTimeout

PASS_TIMEOUT_S = 240.0
"""For all clips of a pass: a worker that is unready for want of memory takes none of them."""
AMPLE_MB = 4096
SHARES = (1.0, 0.75, 0.5, 0.4)
HALF = 0.5
MEMORY_CODES = ("memory_too_small", "precision_unavailable")
"""Errors by which a job would be refused for want of memory."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured."""

    jobs: int
    """Clips of each run."""
    rounds: int
    """Of the half budget and of the sweep, interleaved; 0 leaves the sweep out."""
    shares: tuple[float, ...] = SHARES
    """Budgets, as shares of the most that the work held when it had all it wanted."""
    fixed: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Batch sizes of the sweep."""
    wanted_mb: int | None = None
    """That most, where an earlier run has told; None measures it."""
    items: int = 32
    """Rows that a batch may have where nothing holds it back."""
    forecast_batches: int = 0
    """Batches of the check of forecasts; 0 leaves it out."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of the work over one worker."""

    name: str
    budget_mb: int
    batch_items: int
    throughput: float
    """Clips a second."""
    refused: int
    lost: int
    told: record.Record
    bits: int
    """Of the weights at the end."""

    def as_json(self) -> dict[str, Any]:
        points = self.told.points
        return {
            "name": self.name,
            "budget_mb": self.budget_mb,
            "batch_items": self.batch_items,
            "throughput": round(self.throughput, 3),
            "refused": self.refused,
            "lost": self.lost,
            "seconds_at": record.seconds_at(self.told),
            "peak_mb": round(record.greatest(self.told) / MIB, 1),
            "overshoot": round(record.overshoot(self.told), 4),
            "mean_rows": round(statistics.mean([p.rows for p in points if p.rows] or [0]), 2),
            "bits": self.bits,
            "requantizations": record.requantizations(self.told),
            "restarts": len(self.told.of("restart")),
        }


def run(settings: Settings, order: Order, *, tell: Tell) -> tuple[dict[str, Any], dict[str, Run]]:
    """Measure. Returns what ``--json`` prints, and the runs by name for the picture. Raises Trouble."""
    with tempfile.TemporaryDirectory(prefix="decibatch-bench-") as name:
        bench = _Bench(settings.model, Path(name), order, tell)
        return bench.run()


class _Bench:
    def __init__(self, model: str, folder: Path, order: Order, tell: Tell) -> None:
        self._model = model
        self._folder = folder
        self._order = order
        self._tell = tell
        (folder / "clips").mkdir()
        self._work = load.cut(folder / "clips")
        self._number = 0

    def run(self) -> tuple[dict[str, Any], dict[str, Run]]:
        runs: list[Run] = []
        wanted_mb = self._order.wanted_mb
        if wanted_mb is None:
            runs.append(self._pass("ample", AMPLE_MB, self._order.items))
            wanted_mb = int(record.greatest(runs[0].told) / MIB)
            self._tell(f"with all it wants, the work holds {wanted_mb} MiB")
        for share in self._order.shares:
            if share != HALF or not self._order.rounds:
                runs.append(self._pass(f"{share:.0%}", int(share * wanted_mb), self._order.items))
        told: dict[str, Any] = {"model": self._model, "jobs": self._order.jobs, "wanted_mb": wanted_mb}
        if self._order.rounds:
            half_mb = int(HALF * wanted_mb)
            governed, fixed = self._half_against_sweep(half_mb)
            runs += governed
            best = self._best(fixed, half_mb)
            median = statistics.median(each.throughput for each in governed)
            told["sweep"] = [self._sweep_row(passes, half_mb) for passes in fixed.values()]
            told["half_budget_throughput_ratio"] = round(median / best, 3) if best else None
        told["runs"] = [each.as_json() for each in runs]
        if self._order.forecast_batches:
            told |= self._forecasts()
        return told, {each.name: each for each in runs}

    def _half_against_sweep(self, half_mb: int) -> tuple[list[Run], dict[int, list[Run]]]:
        """The half budget with batches that the governor sizes, and with fixed ones, round by round.

        All of them have the same budget, and so the same precision: what differs is the most rows that may run.
        """
        governed: list[Run] = []
        fixed: dict[int, list[Run]] = {size: [] for size in self._order.fixed}
        for _ in range(self._order.rounds):
            governed.append(self._pass("50%", half_mb, self._order.items))
            for size in self._order.fixed:
                fixed[size].append(self._pass(f"at most {size} rows", half_mb, size))
        return governed, fixed

    @staticmethod
    def _best(fixed: dict[int, list[Run]], half_mb: int) -> float:
        """The best median of those fixed sizes that never crossed the budget; 0 where all did."""
        fitting = [
            passes
            for passes in fixed.values()
            if max(record.greatest(each.told) for each in passes) <= half_mb * MIB
        ]
        return max((statistics.median(each.throughput for each in passes) for passes in fitting), default=0.0)

    @staticmethod
    def _sweep_row(passes: Sequence[Run], half_mb: int) -> dict[str, Any]:
        peak = max(record.greatest(each.told) for each in passes) / MIB
        return {
            "batch_items": passes[0].batch_items,
            "throughput": round(statistics.median(each.throughput for each in passes), 3),
            "peak_mb": round(peak, 1),
            "within_half_budget": peak <= half_mb,
        }

    @contextmanager
    def _worker(self, budget_mb: int, items: int, settings: dict[str, str]) -> Iterator[tuple[Client, Path]]:
        self._number += 1
        log = self._folder / f"memory-{self._number}.jsonl"
        told = {
            "DECIBATCH_MEMORY_LOG": str(log),
            "DECIBATCH_MEMORY_BUDGET_MB": str(budget_mb),
            "DECIBATCH_BATCH_ITEMS": str(items),
            "DECIBATCH_CREDITS": "48",
            "DECIBATCH_BATCH_AUDIO_S": "1000",
            **settings,
        }
        with (
            stack.running(model=self._model, settings=told) as own,
            Client(own.url, queue=stack.QUEUE, model=self._model) as client,
        ):
            yield client, log
            own.check()

    def _pass(self, name: str, budget_mb: int, items: int) -> Run:
        files = self._work.mixed(self._order.jobs)
        with self._worker(budget_mb, items, {}) as (client, log):
            began = time.monotonic()
            refused, lost = _all_done(client, files)
            ended = time.monotonic()
        life = record.read(log)
        told = record.between(life, began, ended)
        bits = record.last_bits(record.between(life, 0, ended))
        run = Run(name, budget_mb, items, len(files) / (ended - began), refused, lost, told, bits)
        self._tell(
            f"{name}: budget {budget_mb} MiB, {run.throughput:.2f} clips/s, "
            f"peak {record.greatest(told) / MIB:.0f} MiB, refused {refused}, lost {lost}"
        )
        return run

    def _forecasts(self) -> dict[str, Any]:
        """Batches of mixed shapes; long windows come only after the warm-up."""
        rng = random.Random(load.SEED)  # noqa: S311 - an order, not a secret
        count = self._order.forecast_batches
        with self._worker(AMPLE_MB, 16, {"DECIBATCH_MLX_CACHE_LIMIT_MB": "64"}) as (client, log):
            for number in range(count):
                known = number < record.WARM_UP_BATCHES
                files = self._work.short if known or rng.random() < 0.5 else self._work.long
                wave = [rng.choice(files)] * rng.randint(1, 5)
                refused, lost = _all_done(client, wave)
                if refused or lost:
                    raise Trouble("A clip of the forecasts was not transcribed.")
                if number % 20 == 19:
                    self._tell(f"forecasts: {number + 1} of {count} batches")
        found = record.accuracy(record.read(log).of("forecast"))
        if found is None:
            return {"predicted_within_15_pct": None}
        return {"predicted_within_15_pct": found.within_15_pct, "forecasts": asdict(found)}


def _all_done(client: Client, files: Sequence[Path]) -> tuple[int, int]:
    """Submit all at once and wait for each. Returns how many were refused, and how many never came back."""
    refused = lost = 0
    until = time.monotonic() + PASS_TIMEOUT_S
    for job in client.submit_many(files):
        if isinstance(job, DecibatchError):
            refused += 1
            continue
        try:
            client.result(job, timeout=max(0.1, until - time.monotonic()))
        except JobNotDone as exc:
            code = exc.error.code if exc.error else ""
            refused, lost = (refused + 1, lost) if code in MEMORY_CODES else (refused, lost + 1)
        except ResultTimeout:
            lost += 1
    return refused, lost
