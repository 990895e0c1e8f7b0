"""Whom we are measured against, and the environments that they need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ops.bench import environments

HERE = Path(__file__).parent
PINS = HERE / "pins"


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who is measured: how it is run, and what its documentation or source says of it."""

    name: str
    worker: tuple[str, ...]
    """Arguments for its Python: the worker."""
    side: tuple[str, ...]
    """Arguments for its Python: the program that enqueues and reads."""
    concurrency: str
    durable: bool
    """Whether a job survives that its worker is killed by SIGKILL."""
    why: str
    package: str | None = None
    """Whose version is told; None for ours."""
    pins: str | None = None
    """Name of its list of pins; None where it runs in our own environment."""
    media: str | None = None
    """How ours gets its audio."""


OUR_WHY = (
    "leases: what a dead worker held is taken over, fenced by attempt; its next life takes it back at once"
)
OUR_CONCURRENCY = "one process, 32 jobs held, batches of 16 in an engine process"
RQ_WHY = "a job that was started is marked as failed by a later sweep of the registry, unless it has retries"
OUR_SIDE = ("-m", "ops.bench.overhead.sides.our_side")
RQ_SIDE = ("-m", "ops.bench.overhead.sides.rq_side")
RQ_WORKER = ("-m", "rq.cli", "worker", "--quiet")

OURS = (
    Contestant(
        "decibatch",
        ("-m", "ops.bench.overhead.stand_in_worker"),
        OUR_SIDE,
        OUR_CONCURRENCY,
        True,
        OUR_WHY,
        media="stand-in",
    ),
    Contestant(
        "decibatch-media",
        ("-m", "decibatch", "worker"),
        OUR_SIDE,
        OUR_CONCURRENCY + ", 2 decoders",
        True,
        OUR_WHY,
        media="decodes a wav of 1 s for every job",
    ),
)

PEERS = (
    Contestant(
        "rq",
        (*RQ_WORKER, "overhead"),
        RQ_SIDE,
        "one process, a fork for each job",
        False,
        RQ_WHY,
        package="rq",
    ),
    Contestant(
        "rq-simple",
        (*RQ_WORKER, "--worker-class", "rq.worker.SimpleWorker", "overhead"),
        RQ_SIDE,
        "one process, one job at a time",
        False,
        RQ_WHY,
        package="rq",
    ),
    Contestant(
        "arq",
        ("-m", "arq", "arq_side.WorkerSettings"),
        (str(HERE / "sides" / "arq_side.py"),),
        "one process, 10 coroutines (its default)",
        True,
        "a job leaves the queue when it has ended; another worker runs it again once the key of the dead one "
        "expires (job_timeout + 10 s, 310 s by default)",
        package="arq",
        pins="arq",
    ),
    Contestant(
        "taskiq",
        ("-m", "taskiq", "worker", "taskiq_side:broker", "--workers", "1", "--log-level", "WARNING"),
        (str(HERE / "sides" / "taskiq_side.py"),),
        "one process, 100 coroutines (its default)",
        True,
        "RedisStreamBroker acknowledges after the result is saved; what is pending is claimed after 600 s idle",
        package="taskiq-redis",
        pins="taskiq",
    ),
    Contestant(
        "docket",
        ("-m", "docket", "worker", "--docket=overhead", "--tasks=docket_side:tasks", "--logging-level=WARNING"),
        (str(HERE / "sides" / "docket_side.py"),),
        "one process, 10 coroutines (its default)",
        True,
        "a stream whose pending entries are delivered again after 300 s without renewal",
        package="pydocket",
        pins="docket",
    ),
)  # fmt: skip

BY_NAME = {peer.name: peer for peer in PEERS}


def version_of(one: Contestant) -> str:
    """Of the package that is measured."""
    if one.pins is None:
        return version(one.package or "decibatch")
    return environments.pinned(pins_of(one.pins), one.package or "")


def pins_of(name: str) -> Path:
    """A file of exact pins, as pip reads it."""
    return PINS / f"{name}.txt"


def interpreter(one: Contestant, cache: Path, tell: Callable[[str], None]) -> Path:
    """The Python that runs it; its environment is made where it is not there yet.

    Raises PeerUnavailable.
    """
    if one.pins is None:
        return Path(sys.executable)
    return environments.interpreter(pins_of(one.pins), cache, tell)
