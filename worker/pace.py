"""Whether the step that runs takes far longer than its like: known in seconds, long before it is past its deadline.

A deadline has to allow for the slowest machine and the largest batch, so it ends a hang after half a minute. What a
step may be expected to take is learned from those before it, and a worker that is far over that says so at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.protocol import StepDone, StepStarted

FLOOR_S = 3.0
"""A step below this is never called stalled: a machine that swaps or wakes up has such moments."""
TIMES = 8.0
"""How many times the slowest of its like a step may take."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What one life of the engine has shown so far. Times are monotonic seconds."""

    kind: str | None = None
    """Of the step that runs; None between steps."""
    began: float = 0.0
    size: float = 1.0
    """Window seconds that the step encodes; 1 for other kinds, whose cost hardly depends on their rows."""
    slowest: tuple[tuple[str, float], ...] = ()
    """By kind, the most seconds that one step took for each unit of size."""

    def started(self, event: StepStarted, now: float, size: float) -> Pace:
        """:param size: padded window seconds of an encoder step, else anything."""
        return replace(
            self, kind=event.kind, began=now, size=max(1.0, size) if event.kind == "encode" else 1.0
        )

    def done(self, event: StepDone) -> Pace:
        size = max(1.0, len(event.rows) * event.window_s) if event.kind == "encode" else 1.0
        # Steps that are recorded together are announced once: what ran since then is all of them.
        known = dict(self.slowest)
        known[event.kind] = max(known.get(event.kind, 0.0), event.seconds / size)
        return replace(self, kind=None, slowest=tuple(known.items()))

    def allowed_s(self) -> float | None:
        """Seconds that the running step may take; None where nothing like it has been seen, or nothing runs."""
        slowest = dict(self.slowest).get(self.kind or "")
        return None if slowest is None else max(FLOOR_S, TIMES * slowest * self.size)

    def running_s(self, now: float) -> float:
        """For how long the step runs; 0 between steps."""
        return max(0.0, now - self.began) if self.kind is not None else 0.0

    def stalled(self, now: float) -> bool:
        allowed = self.allowed_s()
        return allowed is not None and now - self.began > allowed
