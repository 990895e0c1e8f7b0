"""Runs all checks on this machine, with the settings in effect."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from ops import health
from ops.doctor import machine, server
from ops.doctor.finding import Finding, fail, ok, warn
from ops.health import WorkerHealth
from ops.settings import Settings, mask_url
from ops.worker_config import roots
from queueing.connect import connect
from queueing.errors import ServerUnavailable
from queueing.faults import translated
from queueing.keys import Keys
from queueing.protocol import Queue
from queueing.scripts import run


def examine(settings: Settings, needed: tuple[str, ...]) -> Iterator[Finding]:
    """Every check, as it is done.

    :param needed: modules that a worker imports.
    """
    yield machine.this_python()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    yield machine.packages(missing)
    if not missing:
        yield from machine.mlx(machine.ask_mlx(), sys.platform)
        yield from machine.models(_model_problems(settings))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield from machine.limits(soft, settings.memory_budget_mb, psutil.virtual_memory().total)
    yield from machine.inputs(roots(settings))
    yield from _disks(settings)
    yield from _server(settings)
    yield from _service()


def _model_problems(settings: Settings) -> dict[str, str | None]:
    """Converts a model that has not been used yet into the cache, as the worker would."""
    from engine.config import default_cache_dir
    from engine.models import ModelError, Registry

    cache = (settings.cache_dir or default_cache_dir()).expanduser()
    problems: dict[str, str | None] = {}
    for alias in settings.serve or (settings.model,):
        try:
            Registry(
                {name: source for name, source in settings.models.items() if name == alias}, cache
            ).resolve(alias)
            problems[alias] = None
        except (ModelError, OSError) as exc:
            problems[alias] = str(exc)
    return problems


def _disks(settings: Settings) -> Iterator[Finding]:
    from engine.config import default_cache_dir

    folders = {
        "model cache": (settings.cache_dir or default_cache_dir()).expanduser(),
        "spool": settings.spool_dir or Path(tempfile.gettempdir()) / "decibatch-spool",
    }
    for what, folder in folders.items():
        there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        yield machine.disk(what, folder, shutil.disk_usage(there).free, writable=os.access(there, os.W_OK))


def _server(settings: Settings) -> Iterator[Finding]:
    url = settings.redis_url.get_secret_value()
    where = mask_url(url)
    try:
        with translated(where), connect(url, max_connections=1) as client:
            found = server.ask(client, settings.queue)
            yield from found
            if any(one.check == "acl" and one.verdict == "fail" for one in found):
                return
            keys = Keys(settings.queue)
            workers = health.read_with(client, keys)
            yield server.webhooks(run(client, Queue(keys).depth()))
    except ServerUnavailable as exc:
        start = "start the server (`decibatch redis` for a try), or " if exc.transient else ""
        yield fail("redis", f"{exc}.", f"{start}set DECIBATCH_REDIS_URL to redis://user:password@host:6379/0")
        return
    yield from workers_of(workers, settings.queue)


def workers_of(workers: list[WorkerHealth], queue: str) -> list[Finding]:
    """What the workers of the queue say of themselves."""
    if not workers:
        return [
            warn(
                "workers",
                f"No worker is alive on the queue {queue}.",
                "decibatch worker, or decibatch service start",
            )
        ]
    found = []
    for worker in workers:
        warnings = [str(one) for one in worker.fields.get("warnings", ())]
        if not worker.working:
            why = ", ".join(worker.reasons) or "it does not progress"
            found.append(
                warn(
                    "workers", f"{worker.worker} is not ready: {why}.", "decibatch top, and the worker's log"
                )
            )
        elif warnings:
            said = f"{worker.worker}: {'; '.join(warnings)}."
            found.append(
                warn("workers", said, "look for heat, Low Power Mode, other load; then restart the worker")
            )
        else:
            found.append(ok("workers", f"{worker.worker} is ready."))
    return found


def _service() -> Iterator[Finding]:
    if sys.platform != "darwin":
        yield ok("service", "launchd is macOS' own; here another init may run the worker.")
        return
    from ops.commands.service import service_finding

    yield service_finding()
