"""The memory governors of all workers, for people: what each said last, and what was decided before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import redis
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from ops.health import WorkerHealth
from ops.settings import MIB
from queueing.keys import Keys

COLORS = {"open": "green", "queue": "yellow", "shrink": "dark_orange", "pause": "red"}
SHOWN = 12


def events(client: redis.Redis, keys: Keys, count: int = SHOWN) -> list[dict[str, Any]]:
    """The latest decisions of all workers, oldest first. What cannot be read is passed over."""
    found = []
    reply: Any = client.xrevrange(keys.memory, count=count)
    for _, fields in reversed(reply):
        named = {_text(name): _text(value) for name, value in fields.items()}
        try:
            event = json.loads(named.get("event", ""))
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append({"worker": named.get("worker", ""), **event})
    return found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def as_json(workers: Sequence[WorkerHealth], decided: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``decibatch memory --json`` prints."""
    told = [
        {"worker": worker.worker, "level": worker.fields.get("level"), **worker.fields.get("memory", {})}
        for worker in workers
    ]
    return {"workers": told, "events": list(decided)}


def screen(workers: Sequence[WorkerHealth], decided: Sequence[dict[str, Any]]) -> RenderableType:
    """One block for each worker, then the latest decisions."""
    parts: list[RenderableType] = [_worker(worker) for worker in workers]
    if decided:
        table = Table(box=None, header_style="bold", pad_edge=False, title="decisions", title_justify="left")
        for title in ("when", "worker", "what", "why"):
            table.add_column(title, overflow="fold")
        for event in decided:
            when = datetime.fromtimestamp(event.get("at_ms", 0) / 1000).astimezone().strftime("%H:%M:%S")
            table.add_row(when, escape(str(event["worker"])), *(escape(part) for part in sentence(event)))
        parts.append(table)
    return Group(*parts)


def _worker(worker: WorkerHealth) -> RenderableType:
    level, said = str(worker.fields.get("level", "?")), worker.fields.get("memory", {})
    grid = Table.grid(padding=(0, 2))
    color = COLORS.get(level, "white")
    budget, used = int(said.get("budget_now", 0)), int(said.get("used", 0))
    bar = ProgressBar(total=max(budget, 1), completed=min(used, budget), width=30, complete_style=color)
    grid.add_row(f"[bold]{escape(worker.worker)}[/]", f"[{color}]{level}[/]", bar, _of(used, budget))
    limits = said.get("limits", {})
    bits = ", ".join(f"{alias} at {count} bits" for alias, count in said.get("bits", {}).items())
    facts = (
        ("footprint", mib(said.get("footprint", 0))),
        ("active", mib(said.get("active", 0))),
        ("cache", f"{mib(said.get('cache', 0))} of {mib(limits.get('cache', 0))}"),
        ("at rest", mib(said.get("rest", 0))),
        ("batch limit", str(said.get("batch_items", "?"))),
        ("models", bits or "none"),
        ("not ready", "; ".join(worker.reasons)),
    )
    for name, value in facts:
        if value:
            grid.add_row("", name, escape(value))
    return grid


def _of(used: int, budget: int) -> str:
    return f"{mib(used)} of {mib(budget)} ({used / budget:.0%})" if budget else mib(used)


def mib(count: float) -> str:
    return f"{count / MIB:.0f} MiB"


def sentence(event: dict[str, Any]) -> tuple[str, str]:  # noqa: PLR0911 - one for each kind of event
    """What was decided and why, in words."""
    what = str(event.get("what"))
    match what:
        case "level":
            return f"{event['before']} → {event['after']}", str(event["reason"])
        case "limits":
            cache = mib(event["cache"])
            return "limits", f"budget {mib(event['budget'])} of {mib(event['total'])}, cache {cache}"
        case "loaded":
            return "loaded", f"{event['model']} at {event['bits']} bits, {mib(event['weights'])}"
        case "requantize" | "restart":
            return what, str(event["reason"])
        case "requantized":
            moved = f"{event['model']} from {event['bits_before']} to {event['bits']} bits"
            return what, f"{moved}, {mib(event['freed'])} freed{_canary(event.get('canary'))}"
        case "leak":
            return what, f"{mib(event['growth'])} more at rest than {mib(event['baseline'])} at first"
        case "budget_too_small" | "budget_suffices":
            return what.replace("_", " "), f"{mib(event['rest'])} at rest"
        case _:
            return what.replace("_", " "), str(event.get("message", ""))


def _canary(canary: dict[str, Any] | None) -> str:
    if not canary:
        return ""
    words = f"{canary['words_changed']} of {canary['words']} words changed"
    return (
        f"; a clip: {words}, log-probability {canary['logprob_before']:.3f} → {canary['logprob_after']:.3f}"
    )
