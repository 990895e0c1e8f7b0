"""Growth that no work explains: a baseline of what is held beside the running rows, and how far it has moved.

What a process holds at rest wanders: malloc keeps pages, caches come and go. The least over a window of jobs does not,
and where that rises window after window, something is kept that nobody needs. A busy process may keep pages for a long
time that malloc would give back: growth counts once it has outlasted a window after they were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LeakLimits:
    window_jobs: int = 50
    """Jobs over which the least unexplained memory is taken."""
    report_bytes: int = 64 << 20
    """Growth of that over the baseline which is reported."""
    restart_bytes: int = 256 << 20
    """Growth past which the engine is restarted between batches; 0 for never."""


@dataclass(frozen=True, slots=True)
class LeakState:
    """Bytes; None where not known yet."""

    baseline: int | None = None
    """Of the first whole window."""
    least: int | None = None
    """Of the window that runs."""
    jobs: int = 0
    """In the window that runs."""
    growth: int = 0
    """Of the last whole window over the baseline."""
    reported: int = 0
    """Growth at the last report."""
    suspected: bool = False
    """The last window has grown, and what malloc keeps has been asked for since."""


@dataclass(frozen=True, slots=True)
class LeakDecision:
    state: LeakState
    report: bool = False
    restart: bool = False
    suspect: bool = False
    """Have the engine give back what it can, and see whether the growth is still there."""


def note(state: LeakState, unexplained: int | None) -> LeakState:
    """A reading: what is held beyond cache and running rows. None is unknown."""
    if unexplained is None:
        return state
    least = unexplained if state.least is None else min(state.least, unexplained)
    return replace(state, least=least)


def settled(state: LeakState, limits: LeakLimits, jobs: int = 1) -> LeakDecision:
    """So many jobs have ended. The end of a window is judged."""
    state = replace(state, jobs=state.jobs + jobs)
    if state.jobs < limits.window_jobs or state.least is None:
        return LeakDecision(state)
    if state.baseline is None:
        return LeakDecision(LeakState(baseline=state.least))
    growth = state.least - state.baseline
    due = bool(limits.restart_bytes) and growth >= limits.restart_bytes
    grown = growth >= limits.report_bytes and growth >= state.reported + limits.report_bytes
    after = LeakState(state.baseline, None, 0, growth, state.reported, suspected=grown or due)
    if not state.suspected:
        return LeakDecision(after, suspect=grown or due)
    return LeakDecision(replace(after, reported=growth) if grown else after, grown, due)


def explained(state: LeakState, change: int) -> LeakState:
    """What is held at rest has changed by so many bytes for a reason: weights at other bits, say."""
    baseline = None if state.baseline is None else max(0, state.baseline + change)
    return replace(state, baseline=baseline, least=None, jobs=0)
