"""Our own side: files through client, server, worker, media and engine, and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ops.bench.speech.audio import Sound
from ops.bench.speech.side import Answer, Heard
from ops.exits import Trouble
from queueing.client import Client
from queueing.errors import JobNotDone, ResultTimeout
from queueing.job import Result

EVERY_S = 1.0
MOST_CLIPS = 60
"""Beside one long file: what a minute holds."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Clips that were sent one a second, whatever became of those before."""

    latencies: tuple[float, ...]
    """From the call that submits until the text is here, seconds."""
    heard: tuple[Heard, ...]
    sounds: tuple[Sound, ...]


def hear(client: Client, files: Sequence[Path], timeout_s: float) -> Answer:
    """Submit all, then wait for all. Raises Trouble: a file that has no text must not make us faster."""
    began = time.perf_counter()
    handed = client.submit_many(files)
    results = [result_of(client, job, timeout_s) for job in handed]
    return Answer(time.perf_counter() - began, tuple(map(heard, results)))


def result_of(client: Client, job: object, timeout_s: float) -> Result:
    """:raises Trouble: refused, failed, or not done in time."""
    if not isinstance(job, str):
        raise Trouble(f"A file was refused: {job}")
    try:
        return client.result(job, timeout=timeout_s)
    except (JobNotDone, ResultTimeout) as exc:
        raise Trouble(f"A file was not transcribed: {exc}") from exc


def heard(result: Result) -> Heard:
    return Heard(result.text, tuple((one.start, one.end, one.text) for one in result.segments))


def beside(client: Client, clips: Sequence[Sound], long: Sound, timeout_s: float) -> Streamed:
    """A clip every second for as long as the long file takes."""
    with ThreadPoolExecutor(1) as pool:
        job = client.submit(long.path)
        ends = pool.submit(result_of, client, job, timeout_s)
        streamed = _stream(client, clips, MOST_CLIPS, timeout_s, ends)
        ends.result()
    return streamed


def stream(client: Client, clips: Sequence[Sound], count: int, timeout_s: float) -> Streamed:
    """So many clips, one a second."""
    return _stream(client, clips, count, timeout_s, None)


def _stream(
    client: Client, clips: Sequence[Sound], most: int, timeout_s: float, until: Future[Result] | None
) -> Streamed:
    def one(sound: Sound) -> tuple[float, Heard]:
        began = time.perf_counter()
        result = result_of(client, client.submit(sound.path), timeout_s)
        return time.perf_counter() - began, heard(result)

    sounds: list[Sound] = []
    running: list[Future[tuple[float, Heard]]] = []
    began = time.perf_counter()
    with ThreadPoolExecutor(most) as pool:
        while len(sounds) < most and (until is None or not until.done()):
            sounds.append(clips[len(sounds) % len(clips)])
            running.append(pool.submit(one, sounds[-1]))
            time.sleep(max(0.0, began + EVERY_S * len(sounds) - time.perf_counter()))
        answers = [answer.result() for answer in running]
    return Streamed(tuple(s for s, _ in answers), tuple(one for _, one in answers), tuple(sounds))
