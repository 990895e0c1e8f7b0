"""Growth that no work explains is told from work, noise and known changes."""

from __future__ import annotations

import random

from worker.governor.leaks import LeakDecision, LeakLimits, LeakState, explained, note, settled

LIMITS = LeakLimits(window_jobs=10, report_bytes=100, restart_bytes=300)


def run(held: list[int], state: LeakState | None = None) -> list[LeakDecision]:
    """A reading, then a settled job, for each."""
    state = state or LeakState()
    decisions = []
    for reading in held:
        decisions.append(settled(note(state, reading), LIMITS))
        state = decisions[-1].state
    return decisions


def test_noise_is_no_leak() -> None:
    """What wanders up and comes back never counts, however high it goes."""
    rng = random.Random(1)
    held = [1000 + (rng.randint(0, 5000) if i % 5 else 0) for i in range(500)]
    decisions = run(held)
    assert not any(decision.report or decision.restart for decision in decisions)


def test_growth_is_reported_once_for_each_step() -> None:
    """A leak of 10 bytes a job is suspected when a window's least lies 100 over the first one's, reported after another
    window, then every 100."""
    decisions = run([1000 + 10 * i for i in range(60)])
    assert [i for i, decision in enumerate(decisions) if decision.suspect] == [19]
    assert [i for i, decision in enumerate(decisions) if decision.report] == [29, 39, 49, 59]
    assert decisions[29].state.growth == 200


def test_what_is_given_back_when_asked_for_is_no_leak() -> None:
    """Pages that malloc kept, and lets go of once the worker asks, are never reported."""
    held = [1000] * 10 + [1500] * 10 + [1000] * 20 + [1500] * 10 + [1000] * 10
    decisions = run(held)
    assert [i for i, decision in enumerate(decisions) if decision.suspect] == [19, 49]
    assert not any(decision.report or decision.restart for decision in decisions)


def test_past_the_limit_the_engine_is_to_be_restarted() -> None:
    """At 300 bytes of growth a restart is due."""
    decisions = run([1000 + 10 * i for i in range(60)])
    assert [i for i, decision in enumerate(decisions) if decision.restart] == [39, 49, 59]


def test_a_known_change_is_no_growth() -> None:
    """Weights that went to other bits move the baseline with them."""
    state = run([1000] * 10)[-1].state
    state = explained(state, 500)
    assert not run([1500] * 20, state)[-1].report


def test_unknown_readings_are_passed_over() -> None:
    """Without a reading a window is not judged."""
    state = LeakState()
    for _ in range(30):
        state = settled(note(state, None), LIMITS).state
    assert state.baseline is None
