"""The hands of the governor, with a keeper that only takes notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.handle import EngineExit
from engine.limits import Limits
from engine.protocol import (
    ChunkDone,
    ChunkRequest,
    ClearCache,
    DecodeOptions,
    Loaded,
    Ready,
    Requantize,
    RequantizeFailed,
    Rung,
    Sample,
    Shape,
)
from queueing.job import Lane
from worker import governing
from worker.assembler import WaitingChunk
from worker.governing import Governing
from worker.governor import Governor, Level, Thresholds

MIB = 1 << 20
SHAPE = Shape(4, 4, 384, 51_864, 4, 2)
RUNGS = (Rung(32, 144 * MIB, 0, 0), Rung(8, 44 * MIB, 22 * MIB, 135 * MIB))


class Keeper:
    """Notes what it is told to send."""

    ready = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.bits: dict[str, int] = {}
        self.restarts = 0

    def send(self, command: Any) -> bool:
        self.sent.append(command)
        return True

    def restart(self) -> None:
        self.restarts += 1


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, budget_mb: int, log: Path | None = None) -> None:
        self.keeper = Keeper()
        self.handed_back = 0
        self.called_back: list[str] = []
        self.now = 100.0
        monkeypatch.setattr(governing.time, "monotonic", lambda: self.now)
        self.governor = Governor(Thresholds(), max_items=16)
        self.hands = Governing(
            self.governor,
            self.keeper,  # type: ignore[arg-type]
            on_change=lambda: None,
            hand_back=self.hand_back,
            call_back=self.called_back.extend,
            memory_log=log,
        )
        limits = Limits(1 << 34, budget_mb * MIB, 0, 16 * MIB, 0)
        self.hands.engine_event(Ready(1, "cpu", "float32", None, "0", limits))
        self.hands.engine_event(Loaded("m", 1.0, 144 * MIB, 32, 384, ("en",), False, SHAPE, RUNGS))

    def hand_back(self) -> None:
        self.handed_back += 1

    def feed(self, held_mb: int, times: int = 1, cache_mb: int = 0) -> None:
        for _ in range(times):
            self.now += 0.1
            self.hands.engine_event(Sample(held_mb * MIB, cache_mb * MIB, 0, 0))

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.keeper.sent if isinstance(command, kind)]


def chunk(name: str) -> WaitingChunk:
    request = ChunkRequest(name, f"j-{name}", "m", "/spool", 0, 16_000, DecodeOptions())
    return WaitingChunk(request, Lane.NORMAL, 0.0, 16.0)


def done(name: str) -> ChunkDone:
    return ChunkDone(name, f"j-{name}", "", (), "en", 0.0, 0.0, 1.0, 0.0, 1, 16.0, False, 32)


def test_at_the_pause_the_engine_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine has not begun with is asked back as soon as memory crosses the line."""
    rig = Rig(monkeypatch, 400)
    rig.hands.dispatched([chunk(name) for name in "abcd"])
    rig.feed(390)
    assert rig.called_back == []
    rig.feed(410, 2)
    assert set(rig.called_back) == {"c", "d"}
    assert rig.handed_back == 1


def test_a_change_waits_for_the_running_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned while a row runs, the command goes out with its answer and not before, and only once."""
    rig = Rig(monkeypatch, 400)
    rig.hands.dispatched([chunk("a")])
    rig.feed(380, 80)
    assert rig.of(Requantize) == []
    rig.hands.engine_event(done("a"))
    rig.feed(380, 5)
    assert rig.of(Requantize) == [Requantize("m", 8)]


def test_a_busy_engine_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy changes nothing: the command is repeated. Failed means that the next life loads the model that way."""
    rig = Rig(monkeypatch, 250)
    rig.feed(200, 20)
    rig.hands.engine_event(RequantizeFailed("m", 8, "busy", ""))
    rig.feed(200, 1)
    assert rig.of(Requantize) == [Requantize("m", 8)] * 2
    assert rig.keeper.bits == {}
    rig.hands.engine_event(RequantizeFailed("m", 8, "failed", "RuntimeError: no"))
    assert rig.keeper.bits == {"m": 8}


def test_a_change_without_room_is_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the way itself would cross the budget the engine is started anew at the new bits."""
    rig = Rig(monkeypatch, 210)
    rig.feed(200, 20)
    assert rig.of(Requantize) == []
    assert (rig.keeper.restarts, rig.keeper.bits) == (1, {"m": 8})


def test_pause_hands_back_once_and_reclaims_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the line of pause what has not started goes back once; the cache is released every second."""
    rig = Rig(monkeypatch, 1000)
    rig.hands.dispatched([chunk("a")])
    rig.feed(1050, 40)
    assert rig.governor.level is Level.PAUSE
    assert rig.handed_back == 1
    assert 3 <= len(rig.of(ClearCache)) <= 6


def test_a_level_falls_though_memory_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """One low reading that still holds brings the level all the way down, tick by tick; none makes it rise."""
    rig = Rig(monkeypatch, 1000)
    rig.feed(950, 2)
    assert rig.governor.level is Level.SHRINK
    rig.feed(100)
    for _ in range(20):
        rig.now += 0.2
        rig.hands.tick_once(rig.now)
    assert rig.governor.level is Level.OPEN
    rig.feed(1050)
    for _ in range(20):
        rig.now += 0.2
        rig.hands.tick_once(rig.now)
    assert rig.governor.level is Level.OPEN


def test_the_cache_goes_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds after the last answer what MLX keeps is given back, once."""
    rig = Rig(monkeypatch, 4000)
    rig.hands.dispatched([chunk("a")])
    rig.feed(300, 10, cache_mb=50)
    rig.hands.engine_event(done("a"))
    rig.feed(300, 45, cache_mb=50)
    assert rig.of(ClearCache) == []
    rig.feed(300, 100, cache_mb=50)
    assert len(rig.of(ClearCache)) == 1


def test_after_a_device_failure_batches_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that broke or crashed comes back to a quarter of the batch; one that was stopped to all of it."""
    for reason, items in (("broken", 4), ("crashed", 4), ("stopped", 16)):
        rig = Rig(monkeypatch, 4000)
        rig.hands.engine_gone(EngineExit(4, None, reason, ""))
        assert rig.governor.batch_items == items


def test_the_log_holds_readings_decisions_and_forecasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each line is an object with what it is and when; no field holds text of a job."""
    rig = Rig(monkeypatch, 4000, tmp_path / "memory.jsonl")
    rig.feed(200, 6)
    rig.hands.dispatched([chunk("a")])
    rig.feed(300, 2)
    rig.hands.engine_event(done("a"))
    rig.hands.close()
    lines = [json.loads(line) for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    assert {line["what"] for line in lines} == {"limits", "loaded", "sample", "forecast"}
    (forecast,) = [line for line in lines if line["what"] == "forecast"]
    assert (forecast["rows"], forecast["measured"]) == (1, 300 * MIB)
