"""The memory of one process over time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Any

import psutil

MEGA = 1_000_000
SAMPLE_S = 0.25
SETTLED_MB = 2.0
"""By how much the last quarter of a flat curve may lie above its first: an allocator's page or two, not a leak."""
LEAK_MB = 1.0
"""For each :data:`PER_JOBS` jobs, from which on it is a leak: 100 bytes a job, less than one id left in a table."""
PER_JOBS = 10_000
TELLING_JOBS = 5_000
"""Over fewer jobs a page of 4 KB looks like a leak."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Resident memory: (monotonic seconds, bytes)."""

    samples: tuple[tuple[float, int], ...]
    jobs: int = 0
    """Done meanwhile."""

    @property
    def growth_mb(self) -> float:
        """Median of the last quarter above that of the first, MB."""
        sizes = [size for _, size in self.samples]
        quarter = max(1, len(sizes) // 4)
        return (median(sizes[-quarter:]) - median(sizes[:quarter])) / MEGA

    @property
    def mb_per_10k_jobs(self) -> float | None:
        """Slope of the line through all samples; None where too few jobs were done to tell."""
        if self.jobs < TELLING_JOBS or len(self.samples) < 2:
            return None
        times, sizes = zip(*self.samples, strict=True)
        grown = linear_regression(times, sizes).slope * (times[-1] - times[0])
        return float(grown) / MEGA * PER_JOBS / self.jobs

    @property
    def flat(self) -> bool:
        slope = self.mb_per_10k_jobs
        return len(self.samples) > 0 and self.growth_mb <= SETTLED_MB and (slope is None or slope <= LEAK_MB)

    def as_row(self) -> dict[str, Any]:
        """For the report."""
        if len(self.samples) < 2:
            return {"samples": len(self.samples)}
        times, sizes = zip(*self.samples, strict=True)
        slope = linear_regression(times, sizes).slope
        per_10k = self.mb_per_10k_jobs
        of_jobs = {
            "jobs": self.jobs,
            "mb_per_10k_jobs": None if per_10k is None else round(per_10k, 3),
        }
        return {
            "samples": len(self.samples),
            "seconds": round(times[-1] - times[0], 1),
            "min_mb": round(min(sizes) / MEGA, 2),
            "max_mb": round(max(sizes) / MEGA, 2),
            "growth_mb": round(self.growth_mb, 3),
            "slope_kb_per_min": round(60 * slope / 1000, 2),
            **(of_jobs if self.jobs else {}),
        }


class Sampler:
    """Reads a process's resident memory from the start of a ``with`` block to its end."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._samples: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def curve(self) -> Curve:
        """What was read so far."""
        return Curve(tuple(self._samples))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                size = self._process.memory_info().rss
            except psutil.NoSuchProcess:
                return
            self._samples.append((time.monotonic(), size))
            self._stop.wait(SAMPLE_S)
