"""Rounds in turn: whatever else the machine does falls on all sides of a row alike.

In a round every side gets the same files; who goes first changes from round to round. A figure is the
median of its rounds, a ratio the median of the ratios of each round.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from ops import stack
from ops.bench.environments import PeerUnavailable
from ops.bench.speech import audio, machine, ours, report, steps, works
from ops.bench.speech.audio import Sound
from ops.bench.speech.report import Entry, Turn
from ops.bench.speech.side import PEERS, Answer, Peer, Side, SideFailed
from ops.bench.speech.works import Call, Work
from ops.settings import Settings
from queueing.client import Client

Tell = Callable[[str], None]
Hear = Callable[[Sequence[Path], float], Answer]

ANSWER_TIMEOUT_S = 900.0
"""For one call to one side."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run."""

    works: tuple[str, ...] = works.NAMES
    against: tuple[str, ...] = ("mlx-audio", "faster-whisper", "mlx-whisper")
    rounds: int = 5
    limit_s: float = 150.0
    """Of one work: no round begins after it. Every work has one round at least."""
    long_s: float = 300.0
    """Length of the long file, at least."""


@dataclass(slots=True)
class Contender:
    """One side of a work, and its rounds."""

    peer: Peer | None
    """None is ours."""
    hear: Hear | None
    entry: Entry


@dataclass(slots=True)
class Bench:
    """What all works share."""

    order: Order
    settings: Settings
    client: Client
    clips: list[Sound]
    long: Sound
    step_log: Path
    tell: Tell
    facts: dict[str, Any] = field(default_factory=dict)
    """Of the peers, as their processes tell them."""
    batches: dict[str, Any] = field(default_factory=dict)
    """What the step log holds of each work."""


def run(settings: Settings, order: Order, tell: Tell) -> dict[str, Any]:
    """Measure and return the object that ``decibatch bench speech --json`` prints.

    A peer that cannot be had or fails becomes a row that says so.

    :raises Trouble: we ourselves failed.
    """
    with tempfile.TemporaryDirectory(prefix="decibatch-bench-") as name:
        folder = Path(name)
        step_log = folder / "steps.jsonl"
        clips = audio.short(folder)
        long = audio.joined(folder / "long.wav", order.long_s)
        with (
            stack.running(
                model=settings.model, settings={"DECIBATCH_STEP_LOG": str(step_log)}, tell=tell
            ) as own,
            Client(own.url, queue=stack.QUEUE, model=settings.model) as client,
        ):
            bench = Bench(order, settings, client, clips, long, step_log, tell)
            rows = []
            for work in order.works:
                rows += mixed(bench) if work == works.MIXED else side_by_side(bench, works.WORKS[work])
                own.check()
    return {
        "rows": rows,
        "normalizer": report.NORMALIZER,
        "model": settings.model,
        "long_file_s": round(long.seconds, 1),
        "batches": bench.batches,
        "peers": bench.facts,
        **machine.facts(),
    }


def side_by_side(bench: Bench, work: Work) -> list[dict[str, Any]]:
    """The rows of one work."""
    calls = work.calls(bench.clips, bench.long)
    mine = Contender(None, partial(ours.hear, bench.client), Entry())
    mark = steps.mark(bench.step_log)
    with contextlib.ExitStack() as running:
        wanted = [PEERS[name] for name in work.against if _wanted(bench.order, PEERS[name])]
        sides = [mine, *(_start(bench, peer, running) for peer in wanted)]
        bench.tell(f"{work.name}: warming up")
        shortest = min(bench.clips, key=lambda sound: sound.seconds)
        for one in sides:
            _call(one, (shortest,))
        began = time.monotonic()
        for number in range(bench.order.rounds):
            if number and time.monotonic() - began > bench.order.limit_s:
                break
            _round(work, calls, sides if number % 2 == 0 else sides[::-1])
            bench.tell(f"{work.name}, round {number + 1}: {_so_far(sides)}")
    bench.batches[work.name] = steps.summary(steps.read(bench.step_log, mark))
    return [report.row(work, one.peer, mine.entry, one.entry) for one in sides if one.peer is not None]


def _wanted(order: Order, peer: Peer) -> bool:
    return not peer.group or peer.group in order.against


def _start(bench: Bench, peer: Peer, running: contextlib.ExitStack) -> Contender:
    try:
        side = running.enter_context(Side.start(peer, bench.settings, bench.tell))
    except PeerUnavailable as exc:
        bench.tell(f"{peer.name} is not available: {exc}")
        return Contender(peer, None, Entry(trouble=str(exc)))
    bench.facts[peer.name] = side.facts
    return Contender(peer, side.hear, Entry())


def _round(work: Work, calls: Sequence[Call], sides: Sequence[Contender]) -> None:
    """All sides, call by call: what they are given lies as near together in time as can be."""
    answers: dict[int, list[Answer]] = {id(one): [] for one in sides}
    for call in calls:
        for one in sides:
            answer = _call(one, call)
            if answer is not None:
                answers[id(one)].append(answer)
    sounds = [sound for call in calls for sound in call]
    for one in sides:
        given = answers[id(one)]
        if len(given) == len(calls):
            figure = work.figure(calls, [answer.seconds for answer in given])
            one.entry.turns.append(
                Turn(figure, sounds, [heard for answer in given for heard in answer.heard])
            )


def _call(one: Contender, call: Call) -> Answer | None:
    if one.hear is None:
        return None
    try:
        return one.hear([sound.path for sound in call], ANSWER_TIMEOUT_S)
    except SideFailed as exc:
        one.entry.trouble, one.hear = str(exc), None
        return None


def _so_far(sides: Sequence[Contender]) -> str:
    said = []
    for one in sides:
        name = one.peer.name if one.peer is not None else "ours"
        said.append(f"{name} {one.entry.turns[-1].figure:.2f}" if not one.entry.trouble else f"{name} failed")
    return ", ".join(said)


def mixed(bench: Bench) -> list[dict[str, Any]]:
    """The one row in which we are measured against ourselves."""
    beside, alone = Entry(), Entry()
    mark = steps.mark(bench.step_log)
    began = time.monotonic()
    for number in range(bench.order.rounds):
        if number and time.monotonic() - began > bench.order.limit_s:
            break
        busy = ours.beside(bench.client, bench.clips, bench.long, ANSWER_TIMEOUT_S)
        quiet = ours.stream(bench.client, bench.clips, len(busy.latencies), ANSWER_TIMEOUT_S)
        for entry, streamed in ((beside, busy), (alone, quiet)):
            entry.turns.append(Turn(p95(streamed.latencies), list(streamed.sounds), list(streamed.heard)))
        figures = f"p95 {beside.turns[-1].figure:.2f} s, without the long file {alone.turns[-1].figure:.2f} s"
        bench.tell(f"{works.MIXED}, round {number + 1}: {len(busy.latencies)} clips, {figures}")
    bench.batches[works.MIXED] = steps.summary(steps.read(bench.step_log, mark))
    return [report.mixed_row(beside, alone)]


def p95(latencies: Sequence[float]) -> float:
    if len(latencies) < 2:
        return latencies[0]
    return quantiles(latencies, n=20, method="inclusive")[-1]
