"""Prometheus metrics of one worker.

Durations and counts of what happens come from :mod:`worker.facts`, as it happens; levels come from the worker's
health at the moment of the scrape, so that both always tell the same. A value that is not known is NaN: the series
exists, and no rule fires on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from queueing.job import LANES
from queueing.rq_bridge import OUTCOMES as RQ_OUTCOMES
from worker.facts import BatchEnded, BatchSent, ChunkHeard, EngineEnded, Fact, JobEnded, LevelChanged, StepRan
from worker.governor import Level
from worker.webhooks import OUTCOMES as WEBHOOK_OUTCOMES

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (
    *(0.025, 0.04, 0.06, 0.1, 0.15, 0.22, 0.33, 0.5, 0.75, 1.1, 1.7, 2.5),
    *(3.7, 5.5, 8.0, 12.0, 18.0, 27.0, 40.0, 60.0, 120.0, 300.0, 900.0, 3600.0),
)
"""Bounds a factor of about 1.5 apart up to a minute: a quantile read from them is off by at most that."""
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
OUTCOMES = ("done", "failed", "dead", "retry", "handback", "dropped", "refused")
KINDS = ("encode", "detect", "decode")
LEVELS = tuple(level.name.lower() for level in Level)
STAGES = ("queued", "media", "waiting", "engine")


class Metrics:
    """See :class:`worker.facts.Witness`. A registry of its own, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        lane, kind = ["lane"], ["kind"]
        self._first = Histogram(
            "decibatch_first_text_seconds",
            "From submission to the first text of a job.",
            lane,
            buckets=SECONDS,
            registry=registry,
        )
        self._total = Histogram(
            "decibatch_job_seconds",
            "From submission to the result, of jobs that were done.",
            lane,
            buckets=SECONDS,
            registry=registry,
        )
        self._stages = Histogram(
            "decibatch_stage_seconds",
            "Time of a job in each stage: queued, media, waiting, engine.",
            ["stage"],
            buckets=SECONDS,
            registry=registry,
        )
        self._audio = Counter("decibatch_audio_seconds", "Audio of jobs that were done.", registry=registry)
        self._rows = Histogram(
            "decibatch_batch_rows", "Chunks dispatched together.", buckets=ROWS, registry=registry
        )
        self._batch = Histogram(
            "decibatch_batch_seconds",
            "From the first step of a batch to its last.",
            buckets=SECONDS,
            registry=registry,
        )
        self._steps = Counter("decibatch_steps", "Steps of the engine.", kind, registry=registry)
        self._step_seconds = Counter(
            "decibatch_step_seconds", "Time the engine spent in steps.", kind, registry=registry
        )
        self._encoded = Counter(
            "decibatch_encoded_seconds",
            "Seconds of windows encoded: audio, or padding behind it.",
            ["what"],
            registry=registry,
        )
        self._slots = Counter(
            "decibatch_slot_steps",
            "Decode steps times rows: taken by a chunk, or left empty by one that had ended.",
            ["state"],
            registry=registry,
        )
        self._shapes = Counter(
            "decibatch_buffer_shapes",
            "Steps whose shape this engine process had run before (hit) or not (miss): only a hit finds its buffers.",
            ["result"],
            registry=registry,
        )
        self._chunks = Counter(
            "decibatch_chunks",
            "Chunks with text, by whether the first decode was taken or looked wrong (widened: tried again in 30 s).",
            ["window"],
            registry=registry,
        )
        self._transitions = Counter(
            "decibatch_level_transitions",
            "Changes of the memory level, by the new one.",
            ["to"],
            registry=registry,
        )
        self._failures = Counter(
            "decibatch_failures", "Failed attempts of jobs, by code.", ["code"], registry=registry
        )
        self._exits = Counter("decibatch_engine_exits", "Ends of engine processes.", registry=registry)
        self._prepare()

    def _prepare(self) -> None:
        """A series that appears with its first event has no rate for it: let all begin at 0. What happens for each job
        is bound to its labels here, once.
        """
        self._first_of = {lane.value: self._first.labels(lane.value) for lane in LANES}
        self._total_of = {lane.value: self._total.labels(lane.value) for lane in LANES}
        self._stage_of = [self._stages.labels(stage) for stage in STAGES]
        self._steps_of = {kind: self._steps.labels(kind) for kind in KINDS}
        self._seconds_of = {kind: self._step_seconds.labels(kind) for kind in KINDS}
        self._audio_in, self._padding_in = (self._encoded.labels(what) for what in ("audio", "padding"))
        self._taken, self._empty = (self._slots.labels(state) for state in ("taken", "empty"))
        self._hit, self._miss = (self._shapes.labels(result) for result in ("hit", "miss"))
        self._fitting, self._widened = (self._chunks.labels(window) for window in ("fitting", "widened"))
        for level in LEVELS:
            self._transitions.labels(level)

    def watch(self, status: Callable[[], dict[str, Any]]) -> None:
        """Collect levels from a worker's status, once for each scrape."""
        self.registry.register(_StatusCollector(status))

    def scrape(self) -> bytes:
        return generate_latest(self.registry)

    def note(self, fact: Fact) -> None:
        match fact:
            case JobEnded():
                self._note_job(fact)
            case StepRan():
                self._note_step(fact)
            case BatchSent():
                self._rows.observe(fact.rows)
            case BatchEnded():
                self._batch.observe(fact.seconds)
            case ChunkHeard():
                (self._widened if fact.widened else self._fitting).inc()
            case LevelChanged():
                self._transitions.labels(fact.after.name.lower()).inc()
            case EngineEnded():
                self._exits.inc()

    def _note_job(self, job: JobEnded) -> None:
        if job.code:
            self._failures.labels(job.code).inc()
        if job.outcome != "done":
            return
        self._total_of[job.lane].observe(job.total_s)
        if job.first_text_s is not None:
            self._first_of[job.lane].observe(job.first_text_s)
        stages = (job.queued_s, job.media_s, job.waiting_s, job.engine_s)
        for histogram, seconds in zip(self._stage_of, stages, strict=True):
            if seconds is not None:
                histogram.observe(seconds)
        self._audio.inc(job.audio_s)

    def _note_step(self, step: StepRan) -> None:
        if step.kind not in KINDS:
            return
        self._steps_of[step.kind].inc(step.steps)
        self._seconds_of[step.kind].inc(step.seconds)
        if step.kind == "encode":
            self._audio_in.inc(step.real_s)
            self._padding_in.inc(max(0.0, step.padded_s - step.real_s))
            (self._hit if step.again else self._miss).inc()
        if step.kind == "decode":
            self._taken.inc(step.rows * step.steps)
            self._empty.inc((step.slots - step.rows) * step.steps)


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Empty, so that registering asks for no status yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        said = self._status()
        yield from _worker(said)
        yield from _memory(said["memory"], said["level"])
        yield from _queue(said["queue"])
        yield from _told(said)
        yield from _processors(said)
        yield from _canary(said)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"decibatch_{name}", text, value=math.nan if value is None else value)


def _gauges(name: str, text: str, label: str, values: dict[str, float | None]) -> Metric:
    family = GaugeMetricFamily(f"decibatch_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], math.nan if value is None else value)
    return family


def _worker(said: dict[str, Any]) -> Iterator[Metric]:
    engine = said["engine"]
    info = {
        "worker": said["worker"],
        "version": said["version"],
        **{k: engine[k] for k in ("device", "dtype")},
    }
    yield InfoMetricFamily("decibatch_worker", "Which worker this is.", value=info)
    yield _gauge("ready", "1 while the worker takes work.", float(said["ready"]))
    yield _gauge("warnings", "Things that an operator should look at.", len(said["warnings"]))
    yield _gauge(
        "engine_stalled",
        "1 while a step of the engine takes far longer than its like.",
        float(any(reason in ("engine_stalled", "engine_stuck") for reason in said["reasons"])),
    )
    yield _gauge(
        "engine_step_age_seconds", "For how long the running step runs; 0 between steps.", said["step_s"]
    )
    yield CounterMetricFamily(
        "decibatch_engine_restarts", "Restarts of the engine process.", value=engine["restarts"]
    )
    yield CounterMetricFamily("decibatch_redis_outages", "Times that Redis went away.", value=said["outages"])
    yield _gauge("redis_up", "1 while Redis answers.", float("redis_away" not in said["reasons"]))
    yield _gauge("held_jobs", "Jobs taken and not settled.", said["held"])
    yield _gauge("waiting_chunks", "Chunks decoded and not dispatched.", said["waiting_chunks"])
    yield _gauge("media_busy", "Decoders at work.", said["media"]["busy"])
    yield _gauge("spool_bytes", "Decoded audio on disk.", said["media"]["spool_bytes"])
    jobs = CounterMetricFamily("decibatch_jobs", "Attempts that ended, by outcome.", labels=["outcome"])
    for outcome in OUTCOMES:
        jobs.add_metric([outcome], said["settled"].get(outcome, 0))
    yield jobs


def _memory(memory: dict[str, Any], level: str) -> Iterator[Metric]:
    known = {kind: memory[kind] or None for kind in ("active", "cache", "peak", "footprint", "budget")}
    yield _gauges("memory_bytes", "Memory of the engine.", "kind", known)
    lines = {name: line or None for name, line in memory["lines"].items()}
    yield _gauges("memory_line_bytes", "Where each level begins.", "level", lines)
    yield _gauge("memory_ratio", "Share of the budget that counts against the lines.", memory["share"])
    yield _gauge("memory_level", "0 open, 1 queue, 2 shrink, 3 pause.", LEVELS.index(level))
    yield _gauge("batch_limit_rows", "Chunks that a batch may have now.", memory["batch_items"])
    yield _gauges("model_bits", "Bits of each weight at which a model runs.", "model", dict(memory["bits"]))
    yield CounterMetricFamily(
        "decibatch_requantizations", "Moves of a model to other bits.", value=memory["requantizations"]
    )
    yield _gauge("memory_leak_bytes", "Growth at rest that no work explains.", memory["leak_growth"])


def _queue(queue: dict[str, Any] | None) -> Iterator[Metric]:
    lanes = {lane["lane"]: lane for lane in queue["lanes"]} if queue is not None else {}
    family = GaugeMetricFamily(
        "decibatch_queue_jobs", "Jobs in the queue, all workers together.", labels=["lane", "state"]
    )
    for lane in LANES:
        for state in ("waiting", "running"):
            family.add_metric([lane.value, state], lanes[lane.value][state] if lanes else math.nan)
    yield family
    yield _gauges(
        "queue_oldest_seconds",
        "Age of the job that has waited longest; 0 where none waits.",
        "lane",
        {lane.value: lanes[lane.value]["oldest_s"] if lanes else None for lane in LANES},
    )
    yield _gauge("queue_delayed_jobs", "Jobs that wait for their time.", queue["delayed"] if queue else None)
    yield _gauge("queue_dead_jobs", "Jobs on the dead list.", queue["dead"] if queue else None)


def _told(said: dict[str, Any]) -> Iterator[Metric]:
    """Webhooks, and the bridge from RQ: counts of this worker (0 where it does neither), levels of the queue."""
    queue = said["queue"]
    yield _counts("webhooks", "Tries to post the end of a job.", WEBHOOK_OUTCOMES, said["webhooks"])
    for name, field, text in (
        ("webhooks_waiting", "webhooks_waiting", "Ends of jobs that are to be posted."),
        (
            "webhooks_overdue_seconds",
            "webhooks_overdue_s",
            "For how long the first has been due; 0 for not at all.",
        ),
        ("webhooks_given_up", "webhooks_given_up", "Ends of jobs that nobody took: decibatch webhooks list."),
        ("rq_open_jobs", "rq_open", "Unfinished jobs that came from RQ."),
    ):
        yield _gauge(f"queue_{name}", text, queue[field] if queue else None)
    yield _counts("rq_jobs", "Jobs of RQ, by what the bridge did with them.", RQ_OUTCOMES, said["rq"])
    up = float(not said["rq"]["problem"]) if said["rq"] else None
    yield _gauge("rq_up", "Whether the bridge from RQ works; NaN where there is none.", up)


def _counts(name: str, text: str, outcomes: tuple[str, ...], counts: dict[str, Any] | None) -> Metric:
    family = CounterMetricFamily(f"decibatch_{name}", text, labels=["outcome"])
    for outcome in outcomes:
        family.add_metric([outcome], (counts or {}).get(outcome, 0))
    return family


def _processors(said: dict[str, Any]) -> Iterator[Metric]:
    cores = {role: said["cores"].get(role) for role in ("worker", "engine", "media")}
    yield _gauges("cpu_cores", "Cores kept busy.", "process", cores)
    yield _gauge("gpu_ratio", "Share of time in which the GPU worked; NaN where unknown.", said["gpu"])


def _canary(said: dict[str, Any]) -> Iterator[Metric]:
    models = (said["canary"] or {"models": {}})["models"]
    for name, text in (
        ("speed", "Seconds of audio for a second of the engine, at the start."),
        ("share", "Of the best speed that this host has had."),
    ):
        values = {model: models.get(model, {}).get(name) for model in said["serves"]}
        yield _gauges(f"canary_{name}", text, "model", values)
