"""From the settings to what the daemon is told: the only place that knows both."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ops.settings import MIB, Settings

if TYPE_CHECKING:
    from worker.config import EngineSettings, WorkerConfig
    from worker.media.types import MediaLimits


def worker_config(settings: Settings) -> WorkerConfig:
    """What ``worker.daemon.run`` takes. Needs the ``[worker]`` extra."""
    from worker.assembler import BatchLimits
    from worker.config import LeaseConfig, WorkerConfig
    from worker.governor import LeakLimits, Precision, Thresholds

    return WorkerConfig(
        redis_url=settings.redis_url.get_secret_value(),
        queue=settings.queue,
        name=settings.worker_name or default_worker_name(),
        spool_dir=settings.spool_dir or Path(tempfile.gettempdir()) / "decibatch-spool",
        engine=_engine(settings),
        media=_media(settings),
        media_processes=settings.media_processes,
        lease=LeaseConfig(lease_s=settings.lease_s),
        batch=BatchLimits(
            max_items=settings.batch_items,
            max_window_s=settings.batch_audio_s,
            max_items_per_job=settings.batch_chunks_per_job,
        ),
        thresholds=Thresholds(
            queue=settings.memory_queue_pct / 100,
            shrink=settings.memory_shrink_pct / 100,
            pause=settings.memory_pause_pct / 100,
            emergency=max(settings.memory_emergency_pct, settings.memory_pause_pct) / 100,
            requantize_after_s=settings.memory_requantize_after_s,
            restore_after_s=settings.memory_restore_after_s,
        ),
        precision=Precision(least_bits=settings.memory_min_bits or 8, ladder=settings.memory_min_bits != 0),
        leaks=LeakLimits(
            window_jobs=settings.leak_window_jobs,
            report_bytes=settings.leak_report_mb * MIB,
            restart_bytes=settings.leak_restart_mb * MIB,
        ),
        credits=settings.credits,
        drain_s=settings.drain_s,
        poison_after=settings.poison_after,
        max_result_bytes=settings.max_result_bytes,
        step_log=settings.step_log,
        memory_log=settings.memory_log,
    )


def _engine(settings: Settings) -> EngineSettings:
    from engine.config import EngineConfig
    from worker.config import EngineSettings

    return EngineSettings(
        serve=settings.serve or (settings.model,),
        process=EngineConfig(
            aliases=dict(settings.models),
            cache_dir=str(settings.cache_dir.expanduser()) if settings.cache_dir else None,
            partials=settings.partials,
            deadline_base_s=settings.step_deadline_s,
            budget=_bytes(settings.memory_budget_mb),
            reserve=_bytes(settings.memory_reserve_mb),
            memory_limit=_bytes(settings.mlx_memory_limit_mb),
            cache_limit=_bytes(settings.mlx_cache_limit_mb),
            wired_limit=settings.mlx_wired_limit_mb * MIB,
        ),
        command=settings.engine_command or None,
    )


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes * MIB


def _media(settings: Settings) -> MediaLimits:
    from worker.media.types import MediaLimits

    return MediaLimits(
        max_bytes=settings.max_input_bytes,
        max_duration_s=settings.max_duration_s,
        timeout_s=settings.media_timeout_s,
        allowed_schemes=settings.url_schemes,
        allow_private_hosts=settings.url_private_hosts,
    )


def default_worker_name() -> str:
    """The host's name, as far as a key may hold it: stable, so that a restart finds its own work."""
    host = socket.gethostname().split(".")[0]
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in host).strip("-_")[:56]
    return kept or "worker"
