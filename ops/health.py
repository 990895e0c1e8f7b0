"""Whether anybody works: reads what every worker says of itself in Redis."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import redis

from ops.settings import mask_url
from queueing.connect import connect
from queueing.faults import translated
from queueing.keys import Keys

ALWAYS = ("delivered", "bridged", "finished")
"""Outcomes of webhooks and of the bridge from RQ that are shown at zero too."""
STALLED_S = 300.0
"""A worker that says how long its engine has not progressed is stuck beyond this, whatever else it says. An
engine that idles, loads or pauses progresses; a step past its deadline is killed long before."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What one worker last said. ``fields`` is all of it, as the worker wrote it."""

    worker: str
    ready: bool
    reasons: tuple[str, ...]
    progress_s: float
    """Seconds since its engine last progressed."""
    age_s: float
    """Seconds since it said so."""
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def working(self) -> bool:
        """Ready, and progressing."""
        return self.ready and self.progress_s < STALLED_S

    def as_json(self) -> dict[str, Any]:
        told = {"worker": self.worker, "ready": self.ready, "reasons": list(self.reasons), **self.fields}
        return {**told, "age_s": round(self.age_s, 1), "working": self.working}


def read(url: str, queue: str) -> list[WorkerHealth]:
    """All workers that are alive. Raises ServerUnavailable."""
    with translated(mask_url(url)), connect(url, max_connections=1) as client:
        return read_with(client, Keys(queue))


def read_with(client: redis.Redis, keys: Keys) -> list[WorkerHealth]:
    """As :func:`read`, over a connection that is there already."""
    members: Any = client.smembers(keys.workers)
    names = sorted(_text(name) for name in members)
    if not names:
        return []
    answers: Any = client.mget([keys.worker(name) for name in names])
    now_ms = _server_ms(client)
    pairs = zip(names, answers, strict=True)
    # A name without words has stopped saying that it lives: its key has expired.
    return [parse(name, answer, now_ms) for name, answer in pairs if answer is not None]


def parse(name: str, words: bytes | str, now_ms: int) -> WorkerHealth:
    """One worker's JSON. What cannot be read is a worker that is not ready, with the reason."""
    try:
        fields = json.loads(words)
        return WorkerHealth(
            worker=str(fields.get("worker", name)),
            ready=fields["ready"] is True,
            reasons=tuple(str(reason) for reason in fields.get("reasons", ())),
            progress_s=float(fields.get("progress_s") or 0.0),
            age_s=max(0.0, (now_ms - int(fields.get("at_ms", now_ms))) / 1000),
            fields=fields,
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return WorkerHealth(name, False, ("its health cannot be read",), 0.0, 0.0)


def _server_ms(client: redis.Redis) -> int:
    reply: Any = client.time()
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def as_table(workers: list[WorkerHealth]) -> Any:
    """A rich table: one line for each worker."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("worker", "state", "models", "memory", "held", "running", "last progress"):
        table.add_column(title, overflow="fold")
    for worker in workers:
        said = worker.fields
        table.add_row(
            escape(worker.worker),
            _state(worker),
            escape(", ".join(str(_model_name(model)) for model in said.get("models", ()))),
            *(escape(str(said.get(name, ""))) for name in ("level", "held", "running")),
            f"{worker.progress_s:.1f} s",
        )
    return table


def outside(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """What a worker did for others, as (title, counts): ``webhooks`` and ``rq``, where it does them."""
    told = []
    for title in ("webhooks", "rq"):
        what = fields.get(title)
        if isinstance(what, dict):
            shown = ((name, count) for name, count in what.items() if isinstance(count, int))
            parts = [f"{count} {name.replace('_', ' ')}" for name, count in shown if count or name in ALWAYS]
            told.append((title, "  ".join(parts)))
    return told


def _model_name(model: object) -> object:
    return model.get("model", model.get("alias", "?")) if isinstance(model, dict) else model


def _state(worker: WorkerHealth) -> str:
    from rich.markup import escape

    if worker.working:
        warnings = "; ".join(str(one) for one in worker.fields.get("warnings", ()))
        return "[green]ready[/]" + (f" [yellow]{escape(warnings)}[/]" if warnings else "")
    if worker.ready:
        return f"[red]stuck for {worker.progress_s:.0f} s[/]"
    return f"[yellow]not ready[/]: {escape('; '.join(worker.reasons) or 'no reason given')}"
