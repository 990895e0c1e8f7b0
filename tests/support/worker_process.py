"""A real worker for the tests, with the stand-in engine or the real one: signalled and watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import soundfile

from engine.fake import FakeConfig, Poison, poisoned
from queueing.connect import connect
from queueing.keys import Keys
from tests.support.waiting import wait_until

RATE = 16_000


def speech(seconds: float, start_s: float = 1.5) -> np.ndarray[Any, Any]:
    """Real speech, int16 at 16 kHz, beginning in the middle of a word so that it is cut off nowhere."""
    import moonshine_voice

    path = Path(moonshine_voice.__file__).parent / "assets" / "two_cities.wav"
    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        frames = [
            out.to_ndarray()[0] for frame in container.decode(audio=0) for out in resampler.resample(frame)
        ]
    samples = np.concatenate(frames)
    begin = int(start_s * RATE)
    return samples[begin : begin + int(seconds * RATE)]


def write_wav(path: Path, samples: np.ndarray[Any, Any], poison: Poison | None = None) -> Path:
    """A 16 kHz mono wav; ``poison`` puts the stand-in's marker on its first samples."""
    samples = samples.copy()
    if poison is not None:
        marker = np.frombuffer(poisoned(poison, 8), dtype="<i2")[:4]
        samples[:4] = marker
    soundfile.write(path, samples, RATE, subtype="PCM_16")
    return path


class WorkerProcess:
    """One life of a worker."""

    def __init__(
        self, url: str, folder: Path, *, fake: FakeConfig | None = None, name: str = "w1", **settings: Any
    ) -> None:
        self.folder = folder
        self.name = name
        self.keys = Keys("main")
        self.spool = folder / "spool"
        self.step_log = folder / f"steps-{name}.jsonl"
        self._redis = connect(url)
        env = {key: value for key, value in os.environ.items() if not key.startswith("DECIBATCH_")}
        env |= {
            "DECIBATCH_CONFIG": "",
            "DECIBATCH_REDIS_URL": url,
            "DECIBATCH_WORKER_NAME": name,
            "DECIBATCH_SPOOL_DIR": str(self.spool),
            "DECIBATCH_STEP_LOG": str(self.step_log),
            "DECIBATCH_HEALTH_PORT": "0",
        }
        if fake is not None:
            env |= fake.environment()
            env["DECIBATCH_ENGINE_COMMAND"] = f"{sys.executable} -m engine.fake"
        env |= {f"DECIBATCH_{key.upper()}": str(value) for key, value in settings.items()}
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "decibatch", "worker"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def health(self) -> dict[str, Any]:
        """What the worker last said of itself; empty where it has not, or not lately."""
        said = self._redis.get(self.keys.worker(self.name))
        document: dict[str, Any] = json.loads(said) if said else {}
        return document if document.get("pid") == self.pid else {}

    def wait_ready(self, timeout_s: float = 60.0) -> WorkerProcess:
        def ready() -> bool:
            assert self.process.poll() is None, f"the worker ended: {self.log.read_text()[-2000:]}"
            return bool(self.health().get("ready"))

        wait_until(ready, f"{self.name} ready", timeout_s)
        return self

    def engine_pid(self) -> int:
        return int(wait_until(lambda: self.health().get("engine", {}).get("pid"), "engine pid"))

    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.pid).children(recursive=True))
        return []

    def steps(self) -> list[dict[str, Any]]:
        if not self.step_log.exists():
            return []
        return [json.loads(line) for line in self.step_log.read_text().splitlines() if line.endswith("}")]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        return self.process.wait(timeout_s)

    def terminate(self, timeout_s: float = 30.0) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def spooled(self) -> list[Path]:
        return [path for path in self.spool.rglob("*") if path.is_file()] if self.spool.exists() else []

    def close(self) -> None:
        """End whatever is left, by process id."""
        left = self.children()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._redis.close()


@contextlib.contextmanager
def gone(processes: list[psutil.Process], within_s: float) -> Iterator[None]:
    """After the block, all these processes end within so many seconds."""
    yield
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert not alive, f"still alive: {[command_line(process) for process in alive]}"


def command_line(process: psutil.Process) -> list[str]:
    """Its arguments; none of a process that has ended, also where nobody has waited for it yet."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
