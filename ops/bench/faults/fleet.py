"""The workers of a run: each in its place, behind its own line, life after life."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import queueing.scripts
from engine.fake import FakeConfig
from ops import stack
from ops.bench.faults import unsafe_worker
from ops.bench.faults.proxy import Handle
from ops.guarded import Guarded

STAND_IN = FakeConfig(step_s=0.02, decode_steps=10)
"""Some 0.2 s for a batch, however many rows it has."""
MODEL = "tiny.en"
GRACE_S = 20.0
STOPPED_S = 5.0
"""Seconds until a process that was told to stop must be seen to have stopped."""

SAFE = ("-m", "decibatch", "worker")
UNFENCED = ("-m", "ops.bench.faults.unsafe_worker")


@dataclass(frozen=True, slots=True)
class Manner:
    """How workers are run."""

    lease_s: float
    fenced: bool = True
    recovers: bool = True
    """Without: a lease that does not lapse, and a new name for every life, so that nobody takes up what is left."""

    @property
    def told_lease_s(self) -> float:
        return self.lease_s if self.recovers else 3600.0


@dataclass(slots=True)
class Place:
    """One worker, whichever life it is in."""

    number: int
    line: Handle
    url: str
    folder: Path
    manner: Manner
    lives: int = 0
    process: Guarded | None = None
    stopped: bool = False
    dead_line: bool = False
    deaths: list[int] = field(default_factory=list)
    """Exit statuses of lives that nobody ended."""

    @property
    def name(self) -> str:
        """Consumer name of the present life."""
        return f"w{self.number}" if self.manner.recovers else f"w{self.number}-{self.lives}"

    def sha(self, script: str) -> str:
        """By which its workers call a script."""
        return (queueing.scripts.script if self.manner.fenced else unsafe_worker.choose)(script).sha

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.status() is None

    @property
    def log(self) -> Path:
        return self.folder / f"w{self.number}.log"

    @property
    def step_logs(self) -> list[Path]:
        return sorted(self.folder.glob(f"w{self.number}.*.steps"))

    def start(self) -> None:
        """Begin the next life; does nothing where one is going on."""
        if self.alive:
            return
        self._bury()
        self.lives += 1
        settings = {
            **STAND_IN.environment(),
            "DECIBATCH_ENGINE_COMMAND": f"{sys.executable} -m engine.fake",
            "DECIBATCH_WORKER_NAME": self.name,
            "DECIBATCH_STEP_LOG": str(self.folder / f"w{self.number}.{self.lives}.steps"),
            "DECIBATCH_LEASE_S": str(self.manner.told_lease_s),
            "DECIBATCH_PARTIALS": "false",
            "DECIBATCH_DRAIN_S": "10",
        }
        env = stack.environment(self.url, MODEL, self.folder / f"w{self.number}", settings)
        with self.log.open("ab") as output:
            command = [sys.executable, *(SAFE if self.manner.fenced else UNFENCED)]
            self.process = Guarded(command, output=output, grace_s=GRACE_S, env=env)
        self.stopped = False

    def is_ready(self, health: Callable[[str], bytes | None]) -> bool:
        """Whether the present life has said that it is ready."""
        said = health(self.name)
        if said is None or self.process is None:
            return False
        document = json.loads(said)
        return document.get("pid") == self.process.pid and bool(document.get("ready"))

    def kill(self) -> None:
        """SIGKILL, and wait for the end; guard and all."""
        if self.process is not None and self.alive:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(GRACE_S)
        if self.process is not None:
            self.process.stop()
            self.process = None
        self.stopped = False

    def halt(self) -> None:
        """SIGSTOP, and wait until it stands."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process = psutil.Process(self.process.pid)
            for _ in range(int(STOPPED_S / 0.01)):
                if process.status() == psutil.STATUS_STOPPED:
                    break
                with contextlib.suppress(psutil.TimeoutExpired):
                    process.wait(0.01)
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT, where it stands."""
        if self.stopped and self.process is not None and self.alive:
            os.kill(self.process.pid, signal.SIGCONT)
        self.stopped = False

    def engine(self) -> psutil.Process | None:
        return next(iter(self._children("engine.fake")), None)

    def decoders(self) -> list[psutil.Process]:
        return self._children("worker.media")

    def _children(self, module: str) -> list[psutil.Process]:
        found = []
        if self.process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if module in child.cmdline():
                            found.append(child)
        return found

    def note_death(self) -> bool:
        """True where its life has ended and nobody ended it."""
        status = self.process.status() if self.process is not None else None
        if status is None:
            return False
        self.deaths.append(status)
        self._bury()
        return True

    def _bury(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None

    def stop(self) -> None:
        """An orderly stop, then SIGKILL. Safe twice."""
        self.go_on()
        self._bury()
