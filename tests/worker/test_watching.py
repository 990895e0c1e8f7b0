"""What a worker notices of itself: pace, figures, processors, sleep, its own speed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.protocol import ChunkDone, ChunkFailed, Loaded, Rung, Sample, Shape, StepDone, StepStarted
from queueing.protocol import Depth
from worker import canary
from worker.assembler import WaitingChunk
from worker.awake import Awake, command
from worker.bridge import BridgeState
from worker.canary import RUNS, Bests, Canary, Measured, best_key
from worker.config import WatchConfig
from worker.facts import BatchSent, Fact, JobEnded, StepRan
from worker.pace import FLOOR_S, TIMES, Pace
from worker.stats import WINDOW_S, Stats, quantile
from worker.usage import CpuReader, IoregReader, parse_ioreg
from worker.watch import NEWER_S, Watch

FIXTURES = Path(__file__).parents[1] / "fixtures" / "macos"
NOTHING = Sample(0, 0, 0, 0)
SHAPE = Shape(4, 4, 384, 51_864, 4, 2)
MODEL = Loaded("tiny.en", 0.1, 1, 32, 384, ("en",), False, SHAPE, (Rung(32, 1, 0, 0),))


# --- pace -------------------------------------------------------------------------------------------


def step(kind: str, seconds: float, *, rows: int = 1, window_s: float = 10.0, steps: int = 1) -> StepDone:
    names = tuple(str(row) for row in range(rows))
    return StepDone(kind, 1, seconds, names, names, window_s, NOTHING, steps)


def test_a_step_far_over_its_like_has_stalled() -> None:
    """What took a second so far is expected within eight; a moment later it has stalled."""
    pace = Pace().done(step("decode", 1.0)).started(StepStarted("decode", 30.0), now=100.0, size=0.0)
    assert not pace.stalled(100.0 + TIMES - 0.1)
    assert pace.stalled(100.0 + TIMES + 0.1)


def test_short_steps_may_take_some_seconds() -> None:
    """However short the steps before it were, none has stalled below the floor; and beyond it, it has in seconds."""
    pace = Pace().done(step("decode", 0.001)).started(StepStarted("decode", 30.0), now=0.0, size=0.0)
    assert not pace.stalled(FLOOR_S - 0.1)
    assert pace.stalled(FLOOR_S + 0.1)


def test_a_larger_encoder_step_may_take_longer() -> None:
    """Sixteen windows may take sixteen times what one took."""
    pace = Pace().done(step("encode", 1.0, rows=1, window_s=10.0))
    pace = pace.started(StepStarted("encode", 350.0), now=0.0, size=160.0)
    assert not pace.stalled(TIMES * 16 - 0.1)
    assert pace.stalled(TIMES * 16 + 0.1)


def test_the_first_of_a_kind_and_an_idle_engine_have_not_stalled() -> None:
    """Without anything like it only the deadline judges; between steps nothing does."""
    pace = Pace().started(StepStarted("encode", 30.0), now=0.0, size=10.0)
    assert not pace.stalled(1000.0)
    assert not pace.done(step("encode", 1.0)).stalled(1000.0)


# --- figures ----------------------------------------------------------------------------------------


def ended(
    total_s: float, *, lane: str = "normal", outcome: str = "done", code: str = "", at_ms: int = 0
) -> JobEnded:
    return JobEnded("j", lane, outcome, code, 0.0, None, None, None, total_s / 2, total_s, 2.0, at_ms)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def told(*facts: Fact, clock: Clock | None = None) -> dict[str, Any]:
    clock = clock or Clock()
    stats = Stats(clock)
    for fact in facts:
        stats.note(fact)
    clock.now += 10.0
    return stats.document()


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 20, 100, 101])
def test_quantiles_are_numpys(q: float, n: int) -> None:
    """Our quantile is NumPy's, by the inverted empirical distribution."""
    values = [float(number) for number in range(n)]
    assert quantile(values, q) == np.quantile(values, q, method="inverted_cdf")


def test_latencies_are_of_jobs_that_were_done() -> None:
    """A lane's figures count jobs with a result only, and lanes stay apart."""
    lanes = told(
        *(ended(float(number)) for number in range(1, 101)),
        ended(500.0, outcome="failed", code="x"),
        ended(7.0, lane="bulk"),
    )["lanes"]
    assert lanes["normal"]["total"] == {"n": 100, "p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert lanes["normal"]["first_text"]["p50"] == 25.0
    assert lanes["bulk"]["total"]["n"] == 1


def test_old_figures_are_forgotten() -> None:
    """What lies further back than the window is not in the figures."""
    clock = Clock()
    stats = Stats(clock)
    stats.note(ended(1.0))
    clock.now = WINDOW_S + 1
    stats.note(ended(2.0))
    assert stats.document()["lanes"]["normal"]["total"]["n"] == 1


def test_waste_occupancy_and_reuse_are_shares() -> None:
    """Padding is what is encoded beyond the audio; slots count by steps; a shape is reused when it was there before."""
    encode = StepRan("encode", 1.0, 1, 4, 4, 20.0, 80.0, again=False)
    again = StepRan("encode", 1.0, 1, 4, 4, 60.0, 80.0, again=True)
    decode = StepRan("decode", 1.0, 10, 2, 4, 0.0, 0.0, again=False)
    steps = told(encode, again, decode)["steps"]
    assert steps == {"padding_waste": 0.5, "occupancy": 0.5, "shape_reuse": 0.5, "busy": 0.3}


def test_nothing_is_no_share() -> None:
    """Without a step there is no waste and no occupancy, rather than none of it."""
    steps = told(BatchSent(3))["steps"]
    assert (steps["padding_waste"], steps["occupancy"]) == (None, None)


def test_failures_are_kept_newest_first() -> None:
    """The latest failures are listed with their code and job, and no more than a few."""
    failures = told(*(ended(1.0, outcome="failed", code=f"c{n}", at_ms=n) for n in range(20)))["failures"]
    assert [one["code"] for one in failures] == [f"c{n}" for n in range(19, 11, -1)]


# --- processors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "share"), [("ioreg-m1.txt", 0.02), ("ioreg-m4-max.txt", None)])
def test_the_gpu_is_read_from_recorded_output(name: str, share: float | None) -> None:
    """The driver's device utilization is read by its label from the output of an M1 and of an M4 Max."""
    text = (FIXTURES / name).read_text()
    expected = (
        share
        if share is not None
        else int(text.split('"Device Utilization %"=')[1].split(",")[0].split("}")[0]) / 100
    )
    assert parse_ioreg(text) == expected


def test_no_gpu_is_unknown() -> None:
    """An empty answer means no match: unknown, not idle."""
    assert parse_ioreg("") is None


def test_the_gpu_reader_runs_its_command() -> None:
    """What the command prints is read; one that is missing, fails or hangs gives unknown."""
    cat = IoregReader(("cat", str(FIXTURES / "ioreg-m1.txt")))
    assert asyncio.run(cat.read()) == 0.02
    assert asyncio.run(IoregReader(("/nowhere/ioreg",)).read()) is None
    assert asyncio.run(IoregReader(("false",)).read()) is None


def test_a_hanging_gpu_reader_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that does not answer is killed, and the answer is unknown."""
    monkeypatch.setattr("worker.usage.IOREG_TIMEOUT_S", 0.05)
    assert asyncio.run(IoregReader((sys.executable, "-c", "input()", "60")).read()) is None


def test_cores_are_those_of_this_process() -> None:
    """A process that works counts under its role, and the first reading says nothing yet."""
    reader = CpuReader()
    assert reader.read(None) == {"worker": 0.0, "engine": 0.0, "media": 0.0}
    sum(range(3_000_000))
    busy = reader.read(None)
    assert busy["worker"] > 0
    assert busy["engine"] == 0


# --- sleep ------------------------------------------------------------------------------------------


class Spawned:
    def __init__(self) -> None:
        self.started: list[tuple[str, ...]] = []
        self.running = 0
        self.status: int | None = None

    def __call__(self, argv: tuple[str, ...]) -> Spawned:
        self.started.append(argv)
        self.running += 1
        self.status = None
        return self

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.status = -15

    def wait(self, timeout: float | None = None) -> int:
        self.running -= 1
        assert self.status is not None
        return self.status


def test_a_machine_is_kept_awake_only_while_there_is_work() -> None:
    """Held with the first work, once; let go some time after the last."""
    spawn = Spawned()
    awake = Awake(spawn, linger_s=30.0)
    awake.update(False, 0.0)
    assert spawn.started == []
    for second in range(5):
        awake.update(True, float(second))
    assert spawn.started == [command(os.getpid())]
    awake.update(False, 10.0)
    awake.update(False, 39.0)
    assert awake.held
    awake.update(False, 40.0)
    assert not awake.held
    assert spawn.running == 0


def test_the_command_ends_with_the_worker() -> None:
    """caffeinate is told to prevent idle sleep, and to end with this process even if that is killed."""
    assert command(42) == ("/usr/bin/caffeinate", "-i", "-w", "42")


def test_one_that_ended_by_itself_is_started_again() -> None:
    """While there is work, a caffeinate that somebody killed is replaced."""
    spawn = Spawned()
    awake = Awake(spawn)
    awake.update(True, 0.0)
    spawn.status = -9
    awake.update(True, 1.0)
    assert len(spawn.started) == 2
    awake.release()
    assert spawn.running == 0


def test_a_machine_without_caffeinate_works_all_the_same() -> None:
    """A command that cannot be started is tried once."""
    tried = []

    def spawn(argv: tuple[str, ...]) -> Spawned:
        tried.append(argv)
        raise FileNotFoundError(2, "No such file or directory")

    awake = Awake(spawn)
    awake.update(True, 0.0)
    awake.update(True, 1.0)
    assert len(tried) == 1
    assert not awake.held


# --- the canary -------------------------------------------------------------------------------------


def test_the_clip_is_always_the_same() -> None:
    """Two processes make the same bytes: 4 s of 16 kHz sound that is neither silent nor clipped."""
    code = "import sys, hashlib; from worker.canary import clip; print(hashlib.sha256(clip()).hexdigest())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == __import__("hashlib").sha256(canary.clip()).hexdigest()
    samples = np.frombuffer(canary.clip(), "<i2").astype(float)
    assert len(samples) == 64_000
    assert 1000 < np.sqrt(np.mean(samples**2)) < 10_000
    assert np.abs(samples).max() < 32_767


def test_the_best_is_remembered(tmp_path: Path) -> None:
    """The highest speed of a key is kept over lives, and keys stay apart."""
    path = tmp_path / "made" / "canary.json"
    assert Bests(path).raise_to("a", 10.0) == 10.0
    assert Bests(path).raise_to("a", 4.0) == 10.0
    assert Bests(path).raise_to("b", 4.0) == 4.0
    assert Bests(path).raise_to("a", 12.0) == 12.0


@pytest.mark.parametrize("broken", ["", "[1]", '{"a": "x"}', "\0"])
def test_a_broken_file_begins_anew(tmp_path: Path, broken: str) -> None:
    """A state file that makes no sense costs the memory, not the worker."""
    path = tmp_path / "canary.json"
    path.write_text(broken)
    assert Bests(path).raise_to("a", 5.0) == 5.0
    assert json.loads(path.read_text()) == {"a": 5.0}


def test_the_device_is_not_part_of_the_key() -> None:
    """That a model ran on another device is what shall be found; other models, bits and hosts are other bests."""
    keys = {
        best_key("h", MODEL, "mlx"),
        best_key("i", MODEL, "mlx"),
        best_key("h", replace(MODEL, model="base", n_audio_state=512), "mlx"),
        best_key("h", replace(MODEL, bits=8), "mlx"),
        best_key("h", MODEL, "stand-in"),
    }
    assert len(keys) == 5
    assert not any("cpu" in key or "metal" in key for key in keys)


@pytest.mark.parametrize(("speed", "slow"), [(10.0, False), (5.1, False), (4.9, True)])
def test_less_than_half_its_best_is_slow(speed: float, slow: bool) -> None:
    """A worker is slow below half of the best that its host has had."""
    assert Measured(speed, 10.0).slow is slow


def done(chunk: WaitingChunk) -> ChunkDone:
    name = chunk.request.id
    return ChunkDone(name, "canary", "x", (), "en", 0.0, 0.0, 1.0, 0.0, 1, 16.0, widened=False, bits=32)


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


def played(tmp_path: Path, answer: Any) -> Canary:
    """Runs a canary against an engine that is played."""

    async def play() -> Canary:
        offered: asyncio.Queue[WaitingChunk] = asyncio.Queue()
        tested = Canary(
            lambda chunks: offered.put_nowait(chunks[0]),
            tmp_path,
            Bests(tmp_path / "best.json"),
            host="h",
            engine="e",
        )
        tested.begin((MODEL,))
        for number in range(RUNS):
            chunk = await offered.get()
            assert chunk.alone
            assert mode(chunk.request.path) == 0o600
            tested.dispatched((chunk,), 100.0)
            if answer(tested, chunk, number):
                break
        assert tested._task is not None
        await tested._task
        return tested

    return asyncio.run(play())


def test_the_quickest_run_counts(tmp_path: Path) -> None:
    """Of three runs in 2.0, 0.5 and 1.0 s, the second gives the speed: 4 s of audio in half a second."""

    def answer(tested: Canary, chunk: WaitingChunk, number: int) -> bool:
        tested.engine_event(done(chunk), 100.0 + (2.0, 0.5, 1.0)[number])
        return False

    tested = played(tmp_path, answer)
    assert tested.results["tiny.en"].speed == pytest.approx(8.0)
    assert [path.name for path in tmp_path.iterdir()] == ["best.json"]


def test_an_engine_that_refuses_or_dies_is_a_problem_not_a_hang(tmp_path: Path) -> None:
    """A failed chunk or a dead engine ends the measurement with a reason, and the clip is gone."""

    def fails(tested: Canary, chunk: WaitingChunk, number: int) -> bool:
        tested.engine_event(ChunkFailed(chunk.request.id, "canary", "numeric", "", retryable=True), 101.0)
        return True

    def dies(tested: Canary, chunk: WaitingChunk, number: int) -> bool:
        tested.engine_gone()
        return True

    assert "numeric" in played(tmp_path, fails).problem
    assert "died" in played(tmp_path, dies).problem
    assert list(tmp_path.iterdir()) == []


# --- webhooks and RQ --------------------------------------------------------------------------------


def test_what_is_owed_to_others_is_a_warning() -> None:
    """A bridge that cannot work, and webhooks that nobody sends, are told although the worker works."""
    watch = Watch(WatchConfig(), Awake(Spawned()))
    assert watch.warnings() == []
    watch.bridge = BridgeState(problem="its Redis does not answer: ConnectionError")
    watch.depth = Depth((), 0, 0, 0, webhooks_waiting=3, webhooks_overdue_s=61.0)
    assert [one.partition(" ")[0] for one in watch.warnings()] == ["rq_away", "webhooks_overdue"]
    watch.newer(2)
    assert watch.warnings()[0] == "newer_jobs (2 need a worker of a newer version)"
    watch._newer_at -= NEWER_S
    watch.bridge.problem, watch.depth = "", Depth((), 0, 0, 0, webhooks_waiting=3, webhooks_overdue_s=59.0)
    assert watch.warnings() == []
