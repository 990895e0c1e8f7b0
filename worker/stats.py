"""Figures of the last minutes, for people: part of the health that a worker writes to Redis.

Prometheus keeps histories and buckets (:mod:`ops.metrics`); here are exact quantiles over a short window, so that
``decibatch top`` needs nothing but Redis.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from worker.facts import BatchEnded, BatchSent, Fact, JobEnded, StepRan

WINDOW_S = 300.0
MAX_JOBS = 1024
MAX_FAILURES = 8
ROLL_UP_S = 0.5
"""A roll-up is used for so long: health is written up to ten times a second."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest of the values that at least a share ``q`` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """``{"n": 0}`` for no values, else p50, p95 and p99 beside it."""
    if not values:
        return {"n": 0}
    ordered = sorted(values)
    return {
        "n": len(ordered),
        **{f"p{q}": round(quantile(ordered, q / 100), 4) for q in (50, 95, 99)},
    }


class Stats:
    """See :class:`worker.facts.Witness`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._jobs: deque[tuple[float, JobEnded]] = deque(maxlen=MAX_JOBS)
        self._steps: deque[tuple[float, StepRan]] = deque(maxlen=4 * MAX_JOBS)
        self._batches: deque[tuple[float, int]] = deque(maxlen=MAX_JOBS)
        self._batch_seconds: deque[tuple[float, float]] = deque(maxlen=MAX_JOBS)
        self._failures: deque[JobEnded] = deque(maxlen=MAX_FAILURES)
        self._rolled: dict[str, Any] = {}
        self._rolled_at = -math.inf

    def note(self, fact: Fact) -> None:
        now = self._clock()
        match fact:
            case JobEnded():
                self._jobs.append((now, fact))
                if fact.outcome in ("failed", "dead", "retry"):
                    self._failures.append(fact)
            case StepRan():
                self._steps.append((now, fact))
            case BatchSent():
                self._batches.append((now, fact.rows))
            case BatchEnded():
                self._batch_seconds.append((now, fact.seconds))
            case _:
                pass

    def document(self) -> dict[str, Any]:
        """``lanes``, ``steps``, ``batch_rows``, ``failures``, ...: see the code of each below."""
        now = self._clock()
        if now - self._rolled_at >= ROLL_UP_S:
            self._forget(now - WINDOW_S)
            self._rolled = self._roll_up(now)
            self._rolled_at = now
        return self._rolled

    def _forget(self, before: float) -> None:
        kept: Any
        for kept in (self._jobs, self._steps, self._batches, self._batch_seconds):
            while kept and kept[0][0] < before:
                kept.popleft()

    def _roll_up(self, now: float) -> dict[str, Any]:
        jobs = [job for _, job in self._jobs]
        done = [job for job in jobs if job.outcome == "done"]
        rows = [rows for _, rows in self._batches]
        span = min(WINDOW_S, max(1.0, now - self._began))
        return {
            "window_s": WINDOW_S,
            "jobs_per_min": round(60 * len(done) / span, 2),
            "audio_per_s": round(sum(job.audio_s for job in done) / span, 3),
            "lanes": {
                lane: {
                    "first_text": spread(
                        [
                            job.first_text_s
                            for job in done
                            if job.lane == lane and job.first_text_s is not None
                        ]
                    ),
                    "total": spread([job.total_s for job in done if job.lane == lane]),
                }
                for lane in sorted({job.lane for job in done})
            },
            "batch_rows": {str(size): count for size, count in sorted(Counter(rows).items())},
            "batch_seconds": spread([seconds for _, seconds in self._batch_seconds]),
            "steps": self._roll_up_steps(span),
            "failures": [
                {"at_ms": job.at_ms, "job": job.job, "outcome": job.outcome, "code": job.code}
                for job in reversed(self._failures)
            ],
        }

    def _roll_up_steps(self, span: float) -> dict[str, float | None]:
        steps = [step for _, step in self._steps]
        encoded = [step for step in steps if step.kind == "encode"]
        decoded = [step for step in steps if step.kind == "decode"]
        padded = sum(step.padded_s for step in encoded)
        slots = sum(step.slots * step.steps for step in decoded)
        return {
            "padding_waste": _share(padded - sum(step.real_s for step in encoded), padded),
            "occupancy": _share(sum(step.rows * step.steps for step in decoded), slots),
            "shape_reuse": _share(sum(step.again for step in encoded), len(encoded)),
            "busy": round(min(1.0, sum(step.seconds for step in steps) / span), 4),
        }


def _share(part: float, whole: float) -> float | None:
    """None where there was nothing to take a share of."""
    return round(part / whole, 4) if whole else None
