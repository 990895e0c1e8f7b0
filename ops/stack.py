"""A server and a worker of our own, for the demo and the benchmark, and the end of both.

Neither outlives this process: each has a guard that ends it when our pipe closes (:mod:`ops.guard`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops import health
from ops.embedded import EmbeddedServer
from ops.exits import Trouble
from ops.guarded import Guarded
from ops.settings import CONFIG_VARIABLE, ENV_PREFIX
from queueing.errors import ServerUnavailable

QUEUE = "main"
READY_TIMEOUT_S = 300.0
"""The first start converts the model and warms it."""
POLL_S = 0.1
WORKER_GRACE_S = 45.0
KEPT = ("DECIBATCH_CACHE_DIR", "DECIBATCH_MODELS")
"""Settings of the user's that still hold here; the rest are ours."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running server and a worker that is ready."""

    server: EmbeddedServer
    worker: Guarded
    log: Path
    """What the worker logs."""

    @property
    def url(self) -> str:
        return self.server.url

    def check(self) -> None:
        """Raises Trouble where the worker has ended."""
        status = self.worker.status()
        if status is not None:
            raise Trouble(f"The worker ended with status {status}: {last_lines(self.log)}")

    def family(self) -> list[psutil.Process]:
        """Everything that runs for us now: guards, server, worker, its engine and its decoders."""
        return [*self.server.family(), *self.worker.family()]


@contextmanager
def running(
    *,
    model: str,
    settings: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Stack]:
    """Start both, wait until the worker is ready, and stop both at the end.

    :param settings: further ``DECIBATCH_`` variables for the worker.
    :param tell: is given a sentence at each step.
    :param check: is called while the worker gets ready; what it raises ends both.
    :raises Trouble: one of them did not come up, or something is left at the end.
    """
    started: list[psutil.Process] = []
    with tempfile.TemporaryDirectory(prefix="decibatch-") as name:
        folder = Path(name)
        with EmbeddedServer(folder / "redis") as server:
            tell(f"{server.binary.name} runs on 127.0.0.1:{server.port}")
            env = environment(server.url, model, folder, settings or {})
            log = folder / "worker.log"
            with log.open("wb") as output:
                command = [sys.executable, "-m", "decibatch", "worker"]
                worker = Guarded(command, output=output, grace_s=WORKER_GRACE_S, env=env)
            stack = Stack(server, worker, log)
            try:
                _wait_until_ready(stack, tell, check)
                yield stack
            finally:
                started = stack.family()
                worker.stop()
    left = [process.pid for process in started if _is_alive(process)]
    if left:
        raise Trouble(f"Still running after the end: {', '.join(map(str, left))}.")


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def environment(url: str, model: str, folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Ours without the user's settings: a demo must not touch the user's own queue."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX) or name in KEPT
    }
    return {
        **env,
        CONFIG_VARIABLE: "",
        "DECIBATCH_REDIS_URL": url,
        "DECIBATCH_QUEUE": QUEUE,
        "DECIBATCH_MODEL": model,
        "DECIBATCH_SPOOL_DIR": str(folder / "spool"),
        "DECIBATCH_HEALTH_SERVER": "false",
        "DECIBATCH_CANARY": "false",
        **settings,
    }


def _wait_until_ready(stack: Stack, tell: Callable[[str], None], check: Callable[[], None]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    said = ""
    while time.monotonic() < deadline:
        check()
        if stack.worker.wait(POLL_S) is not None:
            stack.check()
        try:
            workers = health.read(stack.url, QUEUE)
        except ServerUnavailable as exc:
            raise Trouble(f"The server went away: {exc}") from exc
        if any(worker.working for worker in workers):
            return
        sentence = "; ".join(reason for worker in workers for reason in worker.reasons)
        if sentence and sentence != said:
            said = sentence
            tell(f"the worker is not ready yet: {sentence.replace('_', ' ')}")
    raise Trouble(f"No worker became ready within {READY_TIMEOUT_S:.0f} s: {last_lines(stack.log)}")


def last_lines(log: Path, count: int = 5) -> str:
    """The end of a log on one line."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or "it logged nothing"
