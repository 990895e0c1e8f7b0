"""A long file whose first pieces are in the engine while media is held up in its middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from engine.config import EngineConfig
from engine.fake import FakeConfig
from queueing.client import AsyncClient
from queueing.errors import JobFailed
from queueing.events import Event
from queueing.job import Result, State
from tests.support.gate import EARLY, GATE_S, MAX_CHUNK_S, PIECES, TALK_S, Gate, talk
from tests.support.worker_process import RATE, command_line
from worker.config import EngineSettings, WatchConfig, WorkerConfig
from worker.daemon import Daemon
from worker.media.types import MediaLimits

SLOW = FakeConfig(step_s=0.1, decode_steps=10_000)
"""What is in the engine stays there until something stops it."""


async def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (held := condition()):
        assert time.monotonic() < deadline, "It did not come in time."
        await asyncio.sleep(0.005)
    return held


class Scene:
    """A worker in this process, its media processes behind a gate, and a client."""

    def __init__(self, daemon: Daemon, client: AsyncClient, gate: Gate, spool: Path) -> None:
        self.daemon = daemon
        self.client = client
        self.gate = gate
        self._spool = spool
        self.running: asyncio.Task[int] | None = None

    async def submit(self, **options: Any) -> str:
        return str(await self.client.submit(self.gate.recording, **options))

    async def result(self, job: str) -> Result:
        return await self.client.result(job, timeout=30)

    async def ungated(self) -> Result:
        """What the recording gives where nothing holds media up."""
        self.gate.take_away()
        return await self.result(await self.submit())

    async def in_engine(self) -> None:
        """Pieces are in the engine, and media has not found all."""
        await until(lambda: self.daemon.health()["running"] and self.gate.reached())
        assert self.media_busy == 1

    @property
    def media_busy(self) -> int:
        media: Any = self.daemon.health()["media"]
        return int(media["busy"])

    def media_process(self) -> psutil.Process:
        """The one that waits at the gate: the other has not opened the recording."""
        children = psutil.Process().children()
        media = [child for child in children if "worker.media" in command_line(child)]
        return next(one for one in media if any(f.path == str(self.gate.recording) for f in one.open_files()))

    def steps(self) -> list[dict[str, Any]]:
        log = self.daemon._config.step_log
        assert log is not None
        return [json.loads(line) for line in log.read_text().splitlines()]

    def spooled(self) -> list[Path]:
        return list(self._spool.rglob("*.pcm"))

    async def nothing_left(self) -> None:
        """No sound, nothing held, nothing in the engine."""
        await until(lambda: not self.daemon.health()["held"] and not self.media_busy)
        assert self.spooled() == []
        assert self.daemon.health()["waiting_chunks"] == 0
        await until(lambda: self.daemon._dispatcher.idle)
        assert not self.daemon._ledger._chunks


Play = Callable[[Scene], Awaitable[None]]
Stage = Callable[..., None]


@pytest.fixture
def stage(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """stage(play, fake=...) runs a coroutine on a :class:`Scene`; afterwards nothing is left."""

    def run(play: Play, fake: FakeConfig | None = None, gate_s: float = GATE_S, **settings: Any) -> None:
        for name, value in (fake or FakeConfig()).environment().items():
            monkeypatch.setenv(name, value)
        gate = Gate(tmp_path, monkeypatch, gate_s)
        config = WorkerConfig(
            redis_url=redis_url,
            queue="main",
            name="w",
            spool_dir=tmp_path / "spool",
            engine=EngineSettings(
                serve=("m",),
                process=EngineConfig(aliases={"m": "fake"}),
                command=(sys.executable, "-m", "engine.fake"),
                restart_backoff_s=(0.05,),
            ),
            media=MediaLimits(max_chunk_s=MAX_CHUNK_S),
            watch=WatchConfig(canary=False, keep_awake=False),
            retry_base_s=0.05,
            step_log=tmp_path / "steps.jsonl",
            **settings,
        )
        asyncio.run(_run(play, config, gate, redis_url))
        assert list((tmp_path / "spool").rglob("*.*")) == []

    return run


async def _run(play: Play, config: WorkerConfig, gate: Gate, url: str) -> None:
    daemon = Daemon(config)
    async with AsyncClient(url, model="m") as client, _living(daemon) as running:
        scene = Scene(daemon, client, gate, config.spool_dir)
        scene.running = running
        await play(scene)


@contextlib.asynccontextmanager
async def _living(daemon: Daemon) -> AsyncIterator[asyncio.Task[int]]:
    running = asyncio.create_task(daemon.run())
    try:
        yield running
    finally:
        daemon.request_stop()
        daemon.request_stop()
        assert await running == 0


def test_text_comes_before_media_has_heard_the_rest(stage: Stage) -> None:
    """The pieces before the gate are heard while it is shut, of a total that is not told; afterwards the result is
    that of a file that nothing held up."""

    async def play(scene: Scene) -> None:
        job = await scene.submit()
        told: list[Event] = []
        async for event in scene.client.events(job):
            told.append(event)
            if event.progress and event.progress.done == EARLY:
                break
        assert (scene.media_busy, len(scene.spooled())) == (1, 1)
        assert any(event.text for event in told)
        await until(scene.gate.open)
        told += [event async for event in scene.client.events(job, after=told[-1].id)]
        steps = [event.progress for event in told if event.progress]
        assert {(step.stage, step.total) for step in steps} == {("media", 0), ("engine", PIECES)}
        assert steps == sorted(steps, key=lambda step: (step.total, step.done))
        result = await scene.result(job)
        times = result.timings
        parts = times.queued + times.media + times.waiting + times.engine
        assert parts <= times.total + 0.001
        whole = await scene.ungated()
        assert (result.text, result.segments) == (whole.text, whole.segments)
        assert len(whole.segments) == PIECES
        await scene.nothing_left()

    # Slow enough for events to be sent while the attempt still runs: afterwards they are refused.
    stage(play, FakeConfig(step_s=0.2))


def test_context_is_carried_over_pieces_that_come_late(stage: Stage) -> None:
    """Where each piece waits for the text of the one before, no two are in a step, and all of the text comes back."""

    async def play(scene: Scene) -> None:
        job = await scene.submit(carry_context=True)
        async for event in scene.client.events(job):
            if event.progress and event.progress.done == EARLY:
                break
        assert scene.media_busy == 1
        await until(scene.gate.open)
        result = await scene.result(job)
        assert max(step["jobs"].count(job) for step in scene.steps()) == 1
        assert result.text == (await scene.ungated()).text

    stage(play)


def test_a_file_that_ends_too_soon_gives_no_part_of_its_text(stage: Stage) -> None:
    """An error of the input that is found after some pieces were heard is the outcome, as if none had been."""

    async def play(scene: Scene) -> None:
        data = bytearray(scene.gate.recording.read_bytes())
        del data[-len(data) // 10 :]
        scene.gate.recording.write_bytes(data)
        job = await scene.submit()
        await scene.in_engine()
        await until(scene.gate.open)
        with pytest.raises(JobFailed) as failed:
            await scene.result(job)
        assert failed.value.error.code == "truncated_input"
        assert (await scene.client.status(job)).result is None
        await scene.nothing_left()

    stage(play, SLOW)


def test_a_media_process_that_dies_in_the_middle_is_a_retry(stage: Stage) -> None:
    """What was heard is dropped, and the next attempt gives the whole text once."""

    async def play(scene: Scene) -> None:
        job = await scene.submit()
        await scene.in_engine()
        process = scene.media_process()
        scene.gate.take_away()
        process.send_signal(signal.SIGKILL)
        result = await scene.result(job)
        assert (result.attempt, len(result.segments)) == (2, PIECES)
        await scene.nothing_left()

    stage(play, FakeConfig(step_s=0.05))


def test_an_engine_that_dies_ends_media_too(stage: Stage) -> None:
    """A job whose pieces were in an engine that was killed does not wait for media to end: it is tried again."""

    async def play(scene: Scene) -> None:
        job = await scene.submit()
        await scene.in_engine()
        process = scene.media_process()
        scene.gate.take_away()
        engine: Any = scene.daemon.health()["engine"]
        os.kill(engine["pid"], signal.SIGKILL)
        assert len((await scene.result(job)).segments) == PIECES
        assert not process.is_running()
        await scene.nothing_left()

    stage(play, FakeConfig(step_s=0.05, decode_steps=10))


def test_a_cancelled_job_ends_media_and_leaves_the_engine(stage: Stage) -> None:
    """Cancelling in the middle kills the media process, takes its pieces from the engine and removes the sound."""

    async def play(scene: Scene) -> None:
        job = await scene.submit()
        await scene.in_engine()
        process = scene.media_process()
        assert await scene.client.cancel(job) is State.CANCELLED
        await scene.nothing_left()
        assert not process.is_running()
        assert scene.daemon._keeper.restarts == 0

    stage(play, SLOW)


def test_the_first_stop_lets_it_finish(stage: Stage) -> None:
    """What the engine has begun with is finished after SIGTERM, media's part of it too."""

    async def play(scene: Scene) -> None:
        job = await scene.submit()
        await scene.in_engine()
        scene.daemon.request_stop()
        await until(scene.gate.open)
        assert scene.running is not None
        assert await scene.running == 0
        assert len((await scene.result(job)).segments) == PIECES

    stage(play, FakeConfig(step_s=0.05))


def test_the_second_stop_hands_it_back(stage: Stage) -> None:
    """A job in the middle of media and engine waits in Redis again, uncounted, with nothing left of it here."""

    async def play(scene: Scene) -> None:
        job = await scene.submit()
        await scene.in_engine()
        scene.daemon.request_stop()
        scene.daemon.request_stop()
        assert scene.running is not None
        assert await scene.running == 0
        status = await scene.client.status(job)
        assert (status.state, status.tries) == (State.WAITING, 0)

    stage(play, SLOW)


def test_a_short_recording_is_heard_before_it_is_searched(stage: Stage) -> None:
    """With nothing else to do the engine has the text of a single piece while media still searches it for speech."""

    async def play(scene: Scene) -> None:
        scene.gate.record(talk()[: int(TALK_S * RATE)])
        job = await scene.submit()
        await until(scene.gate.reached)
        (held,) = scene.daemon._ledger
        await until(lambda: held.results)
        assert (scene.media_busy, held.progress) == (1, {"stage": "media", "done": 0, "total": 0})
        await until(scene.gate.open)
        result = await scene.result(job)
        assert len({row for step in scene.steps() for row in step["rows"]}) == 1
        assert result.text == (await scene.ungated()).text
        await scene.nothing_left()

    stage(play, FakeConfig(step_s=0.2), gate_s=1.0)


@pytest.mark.parametrize(("silence_s", "segments"), [(1.9, 1), (4.0, 0)])
def test_what_was_guessed_wrong_is_not_told(stage: Stage, silence_s: float, segments: int) -> None:
    """A recording with silence at its end, or of silence alone, is guessed to be speech, and its result is as if nobody
    had guessed."""

    async def play(scene: Scene) -> None:
        speech = talk()[: int(TALK_S * RATE)] if segments else talk()[:0]
        scene.gate.record(np.pad(speech, (0, int(silence_s * RATE))))
        job = await scene.submit()
        await until(scene.gate.reached)
        await until(lambda: scene.daemon._dispatcher.batch_sizes)
        await until(scene.gate.open)
        result = await scene.result(job)
        told = [event async for event in scene.client.events(job)]
        assert [event.text for event in told if event.text and not segments] == []
        expected = await scene.ungated()
        assert (result.text, len(result.segments)) == (expected.text, segments)
        assert result.segments == expected.segments
        await scene.nothing_left()

    stage(play, FakeConfig(step_s=0.1), gate_s=1.0)
