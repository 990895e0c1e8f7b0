"""``decibatch worker``: the daemon, in the foreground."""

from __future__ import annotations

import importlib.util

import click

from ops.commands.common import load_settings
from ops.exits import Trouble

NEEDED = (
    "mlx",
    "mlx_audio",
    "av",
    "numpy",
    "prometheus_client",
    "soundfile",
    "structlog",
    "tokenizers",
    "uvicorn",
)


@click.command("worker")
def worker_command() -> int:
    """Take jobs and run them until interrupted.

    The first SIGTERM or ^C lets what runs finish (DECIBATCH_DRAIN_S) and hands the rest back; the second
    one ends it at once.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Trouble(f"A worker needs {', '.join(missing)}: pip install 'decibatch[worker]'")
    settings = load_settings()
    from ops import logs
    from ops.worker_config import worker_config
    from worker import daemon

    try:
        logs.set_up(
            settings.log_level,
            settings.log_format,
            settings.log_file,
            file_mb=settings.log_file_mb,
            file_count=settings.log_file_count,
        )
    except OSError as exc:
        raise Trouble(f"The log {settings.log_file} cannot be written: {exc.strerror}") from exc
    companion = None
    if settings.health_server:
        from ops.web import HealthServer

        companion = HealthServer(settings.health_host, settings.health_port)
    return daemon.run(worker_config(settings), companion)
