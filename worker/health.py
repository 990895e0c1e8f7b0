"""What the worker says of itself: one JSON document, written to Redis every beat and read by ``decibatch health``."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from engine.protocol import Sample
from worker.bridge import BridgeState
from worker.dispatcher import Dispatcher
from worker.governing import Governing
from worker.governor import Governor, Level, Thresholds, danger_bytes
from worker.held import Ledger
from worker.identity import Identity, host_id
from worker.keeper import EngineKeeper
from worker.link import Link
from worker.media.supervisor import MediaSupervisor
from worker.webhooks import Webhooks


def reasons(
    *,
    keeper: EngineKeeper,
    governor: Governor,
    link: Link,
    stopping: bool,
    stalled: bool,
    unready_after: int,
    now: float,
) -> list[str]:
    """Why the worker does not take work; empty where it does."""
    said = []
    if stopping:
        said.append("stopping")
    if not link.up:
        said.append("redis_away")
    if keeper.failures >= unready_after:
        said.append("engine_keeps_dying")
    if not keeper.ready:
        said.append(f"engine_{keeper.state}")
    if keeper.failed_models and not keeper.loaded:
        codes = sorted({failed.code for failed in keeper.failed_models.values()})
        said.append(f"no_model_loaded ({', '.join(codes)})")
    if not keeper.progressing(now):
        said.append("engine_stuck")
    elif stalled:
        said.append("engine_stalled")
    if governor.level is Level.PAUSE:
        said.append("memory_pause")
    if governor.budget_too_small:
        said.append("budget_too_small")
    return said


def memory(governor: Governor, governing: Governing, thresholds: Thresholds) -> dict[str, Any]:
    """What ``decibatch memory`` shows. Bytes."""
    last = governor.last or Sample(0, 0, 0, 0)
    around = governor.surroundings
    return {
        "budget": governor.budget_bytes,
        "budget_now": governor.budget_now,
        "lines": {
            level.name.lower(): int(governor.budget_now * thresholds.enter(level))
            for level in (Level.QUEUE, Level.SHRINK, Level.PAUSE)
        },
        "limits": asdict(governor.limits),
        "share": round(governor.share, 4),
        "used": danger_bytes(last) or 0,
        "rest": governor.rest_bytes,
        "batch_items": governor.batch_items,
        "active": last.active,
        "cache": last.cache,
        "peak": last.peak,
        "footprint": last.footprint,
        "pss": around.pss if around else 0,
        "system": asdict(around.system) if around else {},
        "bits": {alias: model.bits for alias, model in governor.models.items()},
        "requantizations": governing.requantizations,
        "leak_growth": governor.leak_growth,
        "events": list(governing.recent),
    }


def document(
    *,
    identity: Identity | None,
    name: str,
    why: list[str],
    keeper: EngineKeeper,
    governor: Governor,
    governing: Governing,
    dispatcher: Dispatcher,
    ledger: Ledger,
    media: MediaSupervisor | None,
    thresholds: Thresholds,
    settled: Counter[str],
    webhooks: Webhooks | None,
    bridge: BridgeState | None,
    version: str,
) -> dict[str, Any]:
    """All of it but what :meth:`worker.watch.Watch.document` adds.

    :param identity: None until the consumer name is ours; ``name`` is the one wished for.
    :param media: None until there are decoders.
    :param webhooks: None where this worker sends none; ``bridge``: where it takes no jobs from RQ.
    """
    now = time.monotonic()
    device = keeper.device
    sizes = list(dispatcher.batch_sizes)
    return {
        "worker": identity.consumer if identity is not None else name,
        "incarnation": identity.incarnation if identity is not None else 0,
        "host": host_id().split("/", maxsplit=1)[0],
        "pid": os.getpid(),
        "version": version,
        "ready": not why,
        "reasons": why,
        "progress_s": round(keeper.progress_age(now), 2),
        "level": governor.level.name.lower(),
        "models": sorted(keeper.loaded),
        "failed_models": {name: failed.code for name, failed in keeper.failed_models.items()},
        "held": len(ledger),
        "running": ledger.count("engine"),
        "waiting_chunks": len(dispatcher),
        "settled": dict(settled),
        "webhooks": dict(webhooks.counts) if webhooks is not None else None,
        "rq": bridge.document() if bridge is not None else None,
        "batches": {"last": sizes[-1] if sizes else 0, "mean": sum(sizes) / len(sizes) if sizes else 0.0},
        "memory": memory(governor, governing, thresholds),
        "engine": {
            "state": keeper.state,
            "pid": keeper.pid,
            "device": device.device if device else "",
            "dtype": device.dtype if device else "",
            "blas": bool(device and device.blas),
            "restarts": keeper.restarts,
            "failures": keeper.failures,
            "last_exit": keeper.last_exit,
        },
        "media": {
            "busy": media.busy if media is not None else 0,
            "waiting": media.waiting if media is not None else 0,
            "spool_bytes": media.spool_bytes if media is not None else 0,
        },
        "at_ms": int(time.time() * 1000),
    }
