"""Where the time of a job goes: a dozen jobs on one line of time, as an SVG.

From what the results and the step log tell anyway. The parts of a job are its ``timings``; inside the engine's
part, the steps that held one of its rows. A record of several decoder steps, or of an encoder step that gave way to
others, is drawn as one bar that ends when the worker heard of it and lasts as long as they do together.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ops import stack
from ops.bench.speech import audio, machine, ours, steps
from ops.bench.speech.audio import Sound
from ops.bench.speech.svg import Bar, Lane, picture
from ops.settings import Settings
from queueing.client import Client
from queueing.job import Timings

SHORT_JOBS = 11
EVERY_S = 0.15
LONG_S = 45.0
ANSWER_TIMEOUT_S = 240.0

STAGES = (
    ("queue", "waits in Redis", "#c9ccd3"),
    ("media", "media: decode, find speech, cut", "#e0a458"),
    ("waiting", "decoded, waits for its turn in the engine", "#e9e4d4"),
    ("engine", "in the engine: steps of other rows, features", "#d9e3ee"),
    ("features", "features", "#7fb7a4"),
    ("encode", "encoder", "#3b7dd8"),
    ("detect", "language", "#9b6fc4"),
    ("decode", "decoder", "#1d3f72"),
    ("settle", "written to Redis, and back to the client", "#b5544d"),
)
"""Kinds of bars, what they are called, and their colours; the middle ones are kinds of steps."""


@dataclass(frozen=True, slots=True)
class Traced:
    """One job. Moments are Unix seconds."""

    job: str
    sound: Sound
    submitted: float
    answered: float
    timings: Timings


def draw(settings: Settings, tell: Callable[[str], None]) -> str:
    """Run the jobs and return the picture. Raises Trouble."""
    with tempfile.TemporaryDirectory(prefix="decibatch-trace-") as name:
        folder = Path(name)
        step_log = folder / "steps.jsonl"
        clips = audio.short(folder)
        sounds = [audio.joined(folder / "long.wav", LONG_S), *clips[:SHORT_JOBS]]
        with (
            stack.running(
                model=settings.model, settings={"DECIBATCH_STEP_LOG": str(step_log)}, tell=tell
            ) as own,
            Client(own.url, queue=stack.QUEUE, model=settings.model) as client,
        ):
            tell("warming up")
            ours.hear(client, [sound.path for sound in clips], ANSWER_TIMEOUT_S)
            mark = steps.mark(step_log)
            tell(f"{len(sounds)} jobs")
            jobs = _run(client, sounds)
            own.check()
        records = steps.read(step_log, mark)
    return picture(
        lanes(jobs, records),
        [(name, label, colour) for name, label, colour in STAGES],
        title=f"Where the time of {len(jobs)} jobs goes",
        note=f"{machine.facts()['machine']}; {settings.model}; a job every {EVERY_S:g} s",
    )


def _run(client: Client, sounds: Sequence[Sound]) -> list[Traced]:
    def one(sound: Sound) -> Traced:
        submitted = time.time()
        job = client.submit(sound.path)
        result = ours.result_of(client, job, ANSWER_TIMEOUT_S)
        return Traced(job, sound, submitted, time.time(), result.timings)

    with ThreadPoolExecutor(len(sounds)) as pool:
        running = []
        for sound in sounds:
            running.append(pool.submit(one, sound))
            time.sleep(EVERY_S)
        return [job.result() for job in running]


def lanes(jobs: Sequence[Traced], records: Sequence[steps.Record]) -> list[Lane]:
    """One lane for each job, in seconds from the first submission."""
    first = min(job.submitted for job in jobs)
    return [
        Lane(f"job {n}: {job.sound.seconds:.0f} s of audio", tuple(_bars(job, records, first)))
        for n, job in enumerate(jobs, 1)
    ]


def _bars(job: Traced, records: Sequence[steps.Record], first: float) -> list[Bar]:
    times = job.timings
    at = job.submitted - first
    bars = []
    for kind, lasts in (
        ("queue", times.queued),
        ("media", times.media),
        ("waiting", times.waiting),
        ("engine", times.engine),
    ):
        bars.append(Bar(kind, at, at + lasts))
        at += lasts
    begin, end = bars[-1].start, bars[-1].end
    for one in records:
        if job.job in one["jobs"] and "at" in one:
            done = one["at"] - first
            # The worker hears of a step a moment after it: none is drawn beyond the engine's part.
            start = min(max(begin, done - one["seconds"]), end)
            bars.append(Bar(one["kind"], start, max(start, min(end, done))))
    bars.append(Bar("settle", at, max(at, job.answered - first)))
    return bars
