"""Why a worker does not take work: each reason by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.governor import Level
from worker.health import reasons


def told(**wrong: Any) -> list[str]:
    """The reasons of a worker that is well but for what is wrong."""
    keeper = SimpleNamespace(
        ready=True,
        state=wrong.get("state", "ready"),
        failures=wrong.get("failures", 0),
        failed_models=wrong.get("failed_models", {}),
        loaded=wrong.get("loaded", {"tiny.en": object()}),
        progressing=lambda now: wrong.get("progressing", True),
    )
    keeper.ready = keeper.state == "ready"
    return reasons(
        keeper=keeper,  # type: ignore[arg-type]
        governor=SimpleNamespace(  # type: ignore[arg-type]
            level=wrong.get("level", Level.OPEN), budget_too_small=wrong.get("budget_too_small", False)
        ),
        link=SimpleNamespace(up=wrong.get("up", True)),  # type: ignore[arg-type]
        stopping=wrong.get("stopping", False),
        stalled=wrong.get("stalled", False),
        unready_after=3,
        now=0.0,
    )


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"stopping": True}, "stopping"),
        ({"up": False}, "redis_away"),
        ({"failures": 3}, "engine_keeps_dying"),
        ({"state": "starting"}, "engine_starting"),
        ({"state": "loading"}, "engine_loading"),
        ({"state": "restarting"}, "engine_restarting"),
        ({"state": "stopped"}, "engine_stopped"),
        (
            {"loaded": {}, "failed_models": {"base": SimpleNamespace(code="no_weights")}},
            "no_model_loaded (no_weights)",
        ),
        ({"progressing": False}, "engine_stuck"),
        ({"progressing": False, "stalled": True}, "engine_stuck"),
        ({"stalled": True}, "engine_stalled"),
        ({"level": Level.PAUSE}, "memory_pause"),
        ({"budget_too_small": True}, "budget_too_small"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_thing_is_wrong_and_one_reason_is_given(wrong: dict[str, Any], reason: str) -> None:
    """Each trouble makes the worker unready under its own name, and under no other."""
    assert told(**wrong) == [reason]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"failures": 2},
        {"level": Level.SHRINK},
        {"failed_models": {"base": SimpleNamespace(code="no_weights")}},
    ],
)
def test_a_worker_that_works_is_ready(wrong: dict[str, Any]) -> None:
    """An engine that died twice, full memory, and one model of several that is missing keep nobody from working."""
    assert told(**wrong) == []


def test_all_that_is_wrong_is_told() -> None:
    """Several troubles are several reasons."""
    assert told(up=False, level=Level.PAUSE, stopping=True) == ["stopping", "redis_away", "memory_pause"]
