"""From the settings to what the daemon is told: the only place that knows both."""

from __future__ import annotations

import ipaddress
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ops.settings import MIB, Settings

if TYPE_CHECKING:
    from worker.bridge import BridgeConfig
    from worker.config import EngineSettings, WorkerConfig
    from worker.media.types import MediaLimits
    from worker.webhooks import WebhookConfig


def worker_config(settings: Settings) -> WorkerConfig:
    """What ``worker.daemon.run`` takes. Needs the ``[worker]`` extra."""
    from engine.config import default_cache_dir
    from worker.assembler import BatchLimits
    from worker.config import LeaseConfig, WatchConfig, WorkerConfig
    from worker.governor import LeakLimits, Precision, Thresholds

    engine = _engine(settings)
    canary = settings.canary if settings.canary is not None else engine.command is None
    return WorkerConfig(
        redis_url=settings.redis_url.get_secret_value(),
        queue=settings.queue,
        name=settings.worker_name or default_worker_name(),
        spool_dir=settings.spool_dir or Path(tempfile.gettempdir()) / "decibatch-spool",
        engine=engine,
        watch=WatchConfig(
            canary=canary,
            state_dir=(settings.cache_dir or default_cache_dir()).expanduser(),
            keep_awake=settings.keep_awake,
        ),
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
        webhooks=_webhooks(settings),
        bridge=_bridge(settings),
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
            slots=settings.batch_items,
            encode_beside_s=settings.encode_beside_s,
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
        roots=roots(settings),
    )


def roots(settings: Settings) -> tuple[str, ...] | None:
    """Where a worker may read files. Whoever reaches a server on this machine alone is on this machine too."""
    if settings.input_roots:
        return tuple(str(root) for root in settings.input_roots)
    return None if is_this_machines(settings.redis_url.get_secret_value()) else ()


def is_this_machines(redis_url: str) -> bool:
    """Whether the URL names a socket or a loopback address."""
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        return True
    host = parts.hostname or "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _webhooks(settings: Settings) -> WebhookConfig | None:
    from worker.webhooks import WebhookConfig

    if settings.webhook_secret is None:
        return None
    return WebhookConfig(
        secret=settings.webhook_secret.get_secret_value(),
        schemes=settings.webhook_schemes,
        allow_private_hosts=settings.webhook_private_hosts,
        tries=settings.webhook_tries,
        timeout_s=settings.webhook_timeout_s,
        backoff_s=settings.webhook_backoff_s,
    )


def _bridge(settings: Settings) -> BridgeConfig | None:
    from queueing.protocol import Admission
    from worker.bridge import BridgeConfig

    if not settings.rq_queues:
        return None
    return BridgeConfig(
        queues=settings.rq_queues,
        redis_url=(settings.rq_redis_url or settings.redis_url).get_secret_value(),
        model=settings.model,
        admission=Admission(settings.max_waiting, settings.max_inline_bytes),
        pickle_allowed=settings.rq_pickle,
    )


def default_worker_name() -> str:
    """The host's name, as far as a key may hold it: stable, so that a restart finds its own work."""
    host = socket.gethostname().split(".")[0]
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in host).strip("-_")[:56]
    return kept or "worker"
