"""The script of a run: which fault when, and which jobs when. Pure: the same seed makes the same script."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from queueing.job import Lane


class Kind(StrEnum):
    """What is done to whom."""

    WORKER_KILLED = "worker_killed"
    """SIGKILL; the next life, under the same name, begins ``hold_s`` later."""
    WORKER_STOPPED = "worker_stopped"
    """SIGSTOP for longer than its lease, then SIGCONT."""
    ENGINE_KILLED = "engine_killed"
    MEDIA_KILLED = "media_killed"
    """One decoder, whether it works or waits."""
    SERVER_TERMINATED = "server_terminated"
    """SIGTERM, and started again on the same data ``hold_s`` later."""
    SERVER_KILLED = "server_killed"
    """SIGKILL; else the same."""
    LINE_CUT = "line_cut"
    """All connections of one worker are closed."""
    REPLY_LOST = "reply_lost"
    """The server has carried out a script, and the connection ends before its reply arrives."""
    LINE_DEAD = "line_dead"
    """Connections stay open and nothing passes for ``hold_s``; then they close, or what was held back arrives."""


SHARES: dict[Kind, int] = {
    Kind.WORKER_KILLED: 16,
    Kind.WORKER_STOPPED: 12,
    Kind.ENGINE_KILLED: 16,
    Kind.MEDIA_KILLED: 10,
    Kind.SERVER_TERMINATED: 4,
    Kind.SERVER_KILLED: 6,
    Kind.LINE_CUT: 12,
    Kind.REPLY_LOST: 16,
    Kind.LINE_DEAD: 8,
}
"""Percent of all faults."""

SCRIPTS = ("settle", "settle", "take", "take", "renew")
"""Whose replies are lost; the two that change a job more often."""
BURST = (1, 24)
"""Jobs submitted at once: least and most."""
TENANTS = ("ada", "ben", "cyd")
SERVER_AWAY_S = (0.05, 2.5)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    """Seconds after the start."""
    kind: Kind
    worker: int
    """Whom it strikes, from 0, or the next one that has work; without meaning where it strikes the server."""
    hold_s: float = 0.0
    script: str = ""
    """Whose reply is lost."""
    closes: bool = False
    """Whether a dead line closes in the end."""


@dataclass(frozen=True, slots=True)
class Submission:
    at_s: float
    clip: int
    lane: Lane
    tenant: str


@dataclass(frozen=True, slots=True)
class Script:
    """All that is going to happen, in order of time."""

    faults: tuple[Fault, ...]
    submissions: tuple[Submission, ...]


def script(
    seed: int, *, jobs: int, faults: int, seconds: float, workers: int, lease_s: float, clips: int
) -> Script:
    """``faults`` evenly over ``seconds`` with some jitter, and ``jobs`` in bursts."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    kinds = quotas(faults)
    rng.shuffle(kinds)
    pace = seconds / max(1, faults)
    struck = [
        _fault(rng, (number + rng.uniform(0.3, 1.0)) * pace, kind, workers, lease_s)
        for number, kind in enumerate(kinds)
    ]
    return Script(tuple(struck), tuple(_submissions(rng, jobs, seconds, clips)))


def quotas(faults: int) -> list[Kind]:
    """So many of each kind as their shares say, the largest remainders rounded up."""
    exact = {kind: faults * share / 100 for kind, share in SHARES.items()}
    counts = {kind: int(value) for kind, value in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: counts[kind] - exact[kind])
    for kind in by_remainder[: faults - sum(counts.values())]:
        counts[kind] += 1
    return [kind for kind, count in counts.items() for _ in range(count)]


def _fault(rng: random.Random, at_s: float, kind: Kind, workers: int, lease_s: float) -> Fault:
    worker = rng.randrange(workers)
    match kind:
        case Kind.WORKER_KILLED:
            # At once, as launchd does, or so late that somebody else has taken the work over.
            return Fault(at_s, kind, worker, hold_s=rng.choice((0.0, 2.5 * lease_s)))
        case Kind.WORKER_STOPPED:
            return Fault(at_s, kind, worker, hold_s=lease_s * rng.uniform(1.5, 3.0))
        case Kind.SERVER_TERMINATED | Kind.SERVER_KILLED:
            return Fault(at_s, kind, worker, hold_s=rng.uniform(*SERVER_AWAY_S))
        case Kind.REPLY_LOST:
            return Fault(at_s, kind, worker, script=rng.choice(SCRIPTS))
        case Kind.LINE_DEAD:
            hold_s = lease_s * rng.uniform(0.5, 3.0)
            return Fault(at_s, kind, worker, hold_s=hold_s, closes=rng.random() < 0.5)
        case _:
            return Fault(at_s, kind, worker)


def _submissions(rng: random.Random, jobs: int, seconds: float, clips: int) -> list[Submission]:
    """Bursts whose distances follow their sizes, so that the load is even over the whole run."""
    lanes = list(Lane)
    made: list[Submission] = []
    while len(made) < jobs:
        size = min(rng.randint(*BURST), jobs - len(made))
        at_s = seconds * len(made) / jobs
        made += [
            Submission(at_s, rng.randrange(clips), rng.choice(lanes), rng.choice(TENANTS))
            for _ in range(size)
        ]
    return made
