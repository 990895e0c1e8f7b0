"""What ``decibatch memory`` makes of health and events."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from ops import memory
from ops.health import WorkerHealth
from queueing.connect import connect
from queueing.keys import Keys

MIB = 2**20
SAID = {
    "level": "queue",
    "memory": {
        "budget": 400 * MIB, "budget_now": 400 * MIB, "used": 330 * MIB, "footprint": 330 * MIB, "active": 200 * MIB,
        "cache": 10 * MIB, "rest": 210 * MIB, "batch_items": 8, "bits": {"tiny.en": 8}, "limits": {"cache": 20 * MIB},
    },
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"what": "limits", "budget": 400 * MIB, "total": 8000 * MIB, "cache": 20 * MIB},
    {"what": "loaded", "model": "tiny.en", "bits": 32, "weights": 144 * MIB},
    {"what": "level", "before": "open", "after": "queue", "reason": "footprint 330 MiB is 82% of the budget"},
    {"what": "requantize", "reason": "5.0 s at or above the line of shrink"},
    {
        "what": "requantized", "model": "tiny.en", "bits_before": 32, "bits": 8, "freed": 100 * MIB,
        "canary": {"words": 12, "words_changed": 1, "logprob_before": -0.21, "logprob_after": -0.225},
    },
    {"what": "requantize_failed", "message": "RuntimeError: no"},
    {"what": "leak", "growth": 70 * MIB, "baseline": 210 * MIB},
    {"what": "restart", "reason": "70 MiB more at rest"},
    {"what": "budget_too_small", "rest": 300 * MIB},
    {"what": "something_new"},
]  # fmt: skip


def shown(width: int = 160) -> str:
    worker = WorkerHealth("mac", False, ("memory_pause",), 0.0, 0.0, SAID)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(memory.screen([worker], [{"worker": "mac", "at_ms": 1, **event} for event in EVENTS]))
    return console.export_text()


def test_the_screen_tells_level_budget_and_limits() -> None:
    """Level, used of budget, cache of its limit, batch limit, bits and why the worker is not ready."""
    text = shown()
    for part in (
        "queue",
        "330 MiB of 400 MiB (82%)",
        "10 MiB of 20 MiB",
        "batch limit  8",
        "tiny.en at 8 bits",
    ):
        assert part in text
    assert "memory_pause" in text


@pytest.mark.parametrize(
    "part",
    [
        "budget 400 MiB of 8000 MiB",
        "open → queue",
        "footprint 330 MiB is 82% of the budget",
        "tiny.en from 32 to 8 bits, 100 MiB freed; a clip: 1 of 12 words changed, log-probability -0.210 → -0.225",
        "RuntimeError: no",
        "70 MiB more at rest than 210 MiB at first",
        "budget too small",
        "something new",
    ],
)
def test_each_decision_is_a_sentence(part: str) -> None:
    """Every kind of event reads as what was decided and why; one that is not known yet by its name."""
    assert part in shown()


def test_nobody_is_exit_1(cli: Any) -> None:
    """Without a living worker the lists are empty and the exit is 1."""
    done = cli("memory", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, {"workers": [], "events": []})


def test_the_command_reads_health_and_stream(cli: Any, server: Any, queue_name: str) -> None:
    """--json holds what workers say of memory, and the latest decisions; what is no JSON is passed over."""
    keys = Keys(queue_name)
    with connect(server.url) as client:
        client.sadd(keys.workers, "mac")
        client.set(keys.worker("mac"), json.dumps({"worker": "mac", "ready": True, **SAID}))
        client.xadd(keys.memory, {"worker": "mac", "event": json.dumps(EVENTS[2])})
        client.xadd(keys.memory, {"worker": "mac", "event": "not json"})
    done = cli("memory", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert [(w["worker"], w["level"], w["batch_items"]) for w in told["workers"]] == [("mac", "queue", 8)]
    assert [event["after"] for event in told["events"]] == ["queue"]
    assert "open → queue" in cli("memory").stdout
