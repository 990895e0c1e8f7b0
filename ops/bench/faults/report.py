"""From what was seen to what is reported. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.bench.faults.observer import Seen
from ops.bench.faults.play import Struck


@dataclass(frozen=True, slots=True)
class Report:
    """What ``decibatch bench faults --json`` prints."""

    submitted: int
    done: int
    failed: int
    dead: int
    lost: int
    """Jobs that had not ended when all was well again and nothing moved any more, or whose hash was gone."""
    duplicated: int
    """Jobs that ended twice, by any of the observer's means."""
    mixed_up: int
    """Jobs whose text is not that of their clip."""
    executed_again: int
    """Times that the engine ran a job beyond the first, by the step logs of all lives."""
    faults: int
    """Those that struck while a delivery was in the hands of whom they struck."""
    faults_by_kind: dict[str, int]
    missed: int
    """Faults of the script for which there was nothing to strike in time: not counted in ``faults``."""
    recovery_s: dict[str, float | None]
    """Over those faults: seconds until the last job that each struck had ended or been delivered anew."""
    forgotten: int
    """Sightings of an end that was not there any more: writes that the server lost in a kill."""
    pending_left: int
    """Deliveries still pending after the end."""
    worker_exits: list[int]
    """Statuses of workers that ended though nobody ended them; they were started again."""
    seconds: float
    """Of the whole run, starts and settling included."""
    seed: int
    jobs_per_s: float
    workers: int
    lease_s: float
    server: str

    @property
    def sound(self) -> bool:
        """Nothing lost, nothing twice, nothing mixed up."""
        return not (self.lost or self.duplicated or self.mixed_up)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def count_outcomes(jobs: Iterable[Seen]) -> dict[str, int]:
    """The fields that follow from the jobs alone."""
    states = Counter(seen.outcome.state for seen in jobs if seen.outcome is not None)
    return {name: states[name] for name in ("done", "failed", "dead")}


def lost(jobs: Iterable[Seen]) -> int:
    """Without an end, or without a hash."""
    return sum(1 for seen in jobs if seen.outcome is None or seen.vanished)


def duplicated(jobs: Sequence[Seen], counted_ends: int) -> int:
    """Jobs seen to end twice; or the surplus of the server's counters, where that is more."""
    ended = sum(1 for seen in jobs if seen.outcome is not None)
    return max(sum(1 for seen in jobs if seen.duplicated), counted_ends - ended)


def mixed_up(jobs: Iterable[Seen]) -> int:
    """A clip's text is the one that most of its jobs have; every other one is somebody else's."""
    texts: dict[int, Counter[str]] = {}
    for seen in jobs:
        if seen.text is not None:
            texts.setdefault(seen.clip, Counter())[seen.text] += 1
    return sum(sum(counter.values()) - max(counter.values()) for counter in texts.values())


def executed_again(step_logs: Iterable[Path]) -> int:
    """Executions beyond the first of each job. One execution is one chunk id in one life's encoder steps."""
    runs: Counter[str] = Counter()
    for path in step_logs:
        seen: set[tuple[str, str]] = set()
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                step = json.loads(line)
            except ValueError:
                continue  # cut off by the end of its writer
            if step["kind"] == "encode":
                seen |= set(zip(step["jobs"], step["rows"], strict=True))
        # Several chunks of one attempt are one execution.
        runs.update(job for job, _ in {(job, row.rpartition("/")[0]) for job, row in seen})
    return sum(count - 1 for count in runs.values())


def recoveries(struck: Iterable[Struck], jobs: Mapping[str, Seen]) -> list[float]:
    """For each fault, seconds until the last of the jobs that it struck was well again, where all came to be.

    A job is well again with its end, or with the delivery of an attempt newer than the one that was struck,
    whichever comes first; both by the server's clock, which is this machine's.
    """
    found = []
    for one in struck:
        ends = [_well_again_ms(jobs[held.job], held.attempt) for held in one.held if held.job in jobs]
        known = [ms for ms in ends if ms is not None]
        if known and len(known) == len(ends):
            found.append(max(0, max(known) - one.at_ms) / 1000)
    return found


def _well_again_ms(seen: Seen, attempt: int) -> int | None:
    moments = [ms for number, ms in seen.starts.items() if number > attempt]
    if seen.outcome is not None:
        moments.append(seen.outcome.finished_ms)
    return min(moments, default=None)


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The nearest rank."""
    ordered = sorted(values)

    def at(share: float) -> float | None:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3) if ordered else None

    return {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)}


def rows(report: Report) -> list[tuple[str, Any]]:
    """For people: name and value of each line."""
    told = asdict(report)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(told.pop("faults_by_kind").items()))
    times = told.pop("recovery_s")
    told["faults"] = f"{told['faults']} ({kinds})"
    told["recovery"] = ", ".join(f"{name} {value} s" for name, value in times.items())
    return [(name.replace("_", " "), value) for name, value in told.items()]
