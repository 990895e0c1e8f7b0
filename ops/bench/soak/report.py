"""What a soak has measured, and what must hold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ops.bench.soak.memory import Curve
from queueing.keys import Keys

AIM_BYTES = 1500
"""Of server memory for a waiting job, inline audio aside."""
GIVEN_BACK_BYTES = 2_000_000
"""What the server may keep: scripts, capped streams, the tables of a heap that has been large."""
GIVEN_BACK_SHARE = 0.005
"""Of what the waiting jobs took, likewise."""


@dataclass(frozen=True, slots=True)
class Server:
    """Bytes that the server had allocated (``used_memory``)."""

    start: int
    waiting: int
    """With every job waiting."""
    end: int
    """After every result has expired."""


@dataclass(frozen=True, slots=True)
class Report:
    """See ``decibatch bench soak``."""

    jobs: int
    submitted: int
    ends: dict[str, int]
    """By final state, as the server has counted them."""
    still_waiting: int
    server: Server
    idle: Curve
    """A worker without credits, beside all that waits."""
    running: Curve
    """A worker at work, after its first jobs."""
    keys_left: tuple[str, ...]
    seconds: dict[str, float]
    version: str
    seed: int

    @property
    def bytes_per_job(self) -> float:
        return (self.server.waiting - self.server.start) / max(1, self.submitted)

    @property
    def leaked(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys_left if not is_static(key))

    @property
    def kept_bytes(self) -> int:
        return self.server.end - self.server.start

    @property
    def given_back(self) -> bool:
        taken = self.server.waiting - self.server.start
        return self.kept_bytes <= max(GIVEN_BACK_BYTES, GIVEN_BACK_SHARE * taken)

    @property
    def failings(self) -> list[str]:
        """What does not hold; empty where all does."""
        ended = sum(self.ends.values())
        checks = {
            f"{self.submitted} of {self.jobs} jobs were admitted": self.submitted == self.jobs,
            f"{ended} of {self.submitted} jobs have ended": ended == self.submitted,
            f"{self.still_waiting} jobs count as waiting": self.still_waiting == 0,
            f"a waiting job takes more than {AIM_BYTES} bytes": self.bytes_per_job <= AIM_BYTES,
            "an idle worker's memory is not flat": self.idle.flat,
            "a working worker's memory is not flat": self.running.flat,
            f"{len(self.leaked)} keys are left": not self.leaked,
            "the server's memory is not given back": self.given_back,
        }
        return [sentence for sentence, holds in checks.items() if not holds]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "jobs": self.jobs,
            "submitted": self.submitted,
            "ends": self.ends,
            "still_waiting": self.still_waiting,
            "bytes_per_waiting_job": round(self.bytes_per_job, 1),
            "server_bytes": asdict(self.server),
            "server_kept_bytes": self.kept_bytes,
            "idle_worker": self.idle.as_row(),
            "running_worker": self.running.as_row(),
            "keys_left": list(self.keys_left),
            "leaked": list(self.leaked[:20]),
            "failings": self.failings,
            "seconds": self.seconds,
            "server": self.version,
            "seed": self.seed,
        }

    def as_json(self) -> str:
        return json.dumps(self.as_dict())


def is_static(key: str) -> bool:
    """Whether a key belongs to the queue as a whole, bounded in number and in length."""
    root, _, rest = key.partition("}:")
    keys = Keys(root.partition("{")[2])
    fixed = (
        keys.models,
        keys.served,
        keys.counts,
        keys.wake,
        keys.control,
        keys.incidents,
        keys.workers,
        keys.sweep,
        keys.memory,
    )
    # One stream a model and lane, one counter a worker's name.
    return key in fixed or rest.partition(":")[0] in ("stream", "life")
