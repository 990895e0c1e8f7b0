"""The live picture of a queue and its workers: what ``decibatch top`` shows.

Everything comes from Redis, where workers write their health at least every two seconds, so it works from any host
that reaches the server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ops import health
from ops.health import WorkerHealth
from ops.settings import mask_url
from queueing.connect import connect
from queueing.faults import translated
from queueing.keys import Keys
from queueing.protocol import Depth, LaneDepth, Queue
from queueing.scripts import run

WIDTH = 80
BAR = 32
FAILURES = 6
LEVEL_STYLE = {"open": "green", "queue": "yellow", "shrink": "dark_orange", "pause": "red"}
GB = 1e9


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look at Redis gave."""

    queue: str
    workers: tuple[WorkerHealth, ...]
    depth: Depth
    at: float
    """Unix seconds, by this machine's clock."""


def read(url: str, queue: str) -> Snapshot:
    """One look. Raises ServerUnavailable."""
    with translated(mask_url(url)), connect(url, max_connections=1) as client:
        keys = Keys(queue)
        workers = tuple(health.read_with(client, keys))
        return Snapshot(queue, workers, run(client, Queue(keys).depth()), time.time())


def picture(seen: Snapshot, *, away: str = "") -> RenderableType:
    """For a terminal of 80 columns or more.

    :param away: why there is nothing newer than this; "" where it is current.
    """
    parts: list[RenderableType] = [_head(seen, away), Text(), _lanes(seen), Text()]
    for worker in seen.workers:
        parts += [*_worker(worker), Text()]
    if not seen.workers:
        parts += [Text("No worker is alive on this queue.", style="red"), Text()]
    return Group(*parts, *_failures(seen.workers))


def _head(seen: Snapshot, away: str) -> Text:
    working = sum(worker.working for worker in seen.workers)
    clock = time.strftime("%H:%M:%S", time.localtime(seen.at))
    count = f"{working} of {len(seen.workers)} worker{'s' if len(seen.workers) != 1 else ''} ready"
    line = Text.assemble(("decibatch top", "bold"), f"  queue {seen.queue}  {count}  {clock}")
    queue = seen.depth
    line.append(f"\n{queue.waiting} waiting  {queue.delayed} delayed  ", style="dim")
    line.append(f"{queue.dead} dead", style="red" if queue.dead else "dim")
    for text, style in _outside(queue):
        line.append(text, style=style)
    if away:
        line.append(f"\n{away}", style="red")
    return line


def _outside(queue: Depth) -> list[tuple[str, str]]:
    """What is owed to others; nothing where there is nothing, which is so for most."""
    said = []
    if queue.webhooks_waiting or queue.webhooks_given_up:
        said.append((f"  webhooks {queue.webhooks_waiting} waiting", "dim"))
        said.append((f" {queue.webhooks_given_up} given up", "red" if queue.webhooks_given_up else "dim"))
    if queue.rq_open:
        said.append((f"  {queue.rq_open} from RQ", "dim"))
    return said


# --- lanes ------------------------------------------------------------------------------------------


def _lanes(seen: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("lane")
    for title in ("waiting", "running", "oldest"):
        table.add_column(title, justify="right")
    table.add_column("first text s\np50   p95", justify="right")
    table.add_column("whole job s\np50   p95   p99", justify="right")
    for lane in seen.depth.lanes:
        table.add_row(
            lane.lane,
            str(lane.waiting),
            str(lane.running),
            _age(lane),
            _worst(seen.workers, lane.lane, "first_text", ("p50", "p95")),
            _worst(seen.workers, lane.lane, "total", ("p50", "p95", "p99")),
        )
    return table


def _age(lane: LaneDepth) -> str:
    return seconds(lane.oldest_s) if lane.waiting else "-"


def seconds(value: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2.5 h``."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _worst(workers: Iterable[WorkerHealth], lane: str, what: str, names: tuple[str, ...]) -> str:
    """Quantiles cannot be added up over workers; the worst of them is what a user may meet."""
    spreads = [_in(worker.fields, "lanes", lane, what) or {} for worker in workers]
    figures = [max((one[name] for one in spreads if name in one), default=None) for name in names]
    return " ".join(f"{'-' if figure is None else f'{figure:.2f}':>5}" for figure in figures)


# --- workers ----------------------------------------------------------------------------------------


def _worker(worker: WorkerHealth) -> list[RenderableType]:
    said = worker.fields
    state = ("ready", "green") if worker.working else ("not ready", "red")
    line = Text.assemble((worker.worker, "bold"), "  ", state)
    models = ", ".join(str(model) for model in said.get("models", ()))
    engine = said.get("engine") or {}
    line.append(f"  {models or 'no model'} on {engine.get('device') or '?'}", style="dim")
    line.append(f"  {said.get('held', 0)} held, {said.get('running', 0)} running")
    if worker.age_s > 5:
        line.append(f"  said so {seconds(worker.age_s)} ago", style="yellow")
    rows: list[RenderableType] = [line]
    told = [*worker.reasons, *said.get("warnings", ())]
    if told:
        rows.append(Text("  " + "; ".join(_plain(str(one)) for one in told), style="yellow"))
    return [*rows, _memory(said), _engine(said), _batches(said), *_told(said)]


def _plain(reason: str) -> str:
    """A reason without the underscores of its name; what stands behind it may hold names of settings and models."""
    name, blank, rest = reason.partition(" ")
    return name.replace("_", " ") + blank + rest


def _memory(said: dict[str, Any]) -> Text:
    memory = said.get("memory") or {}
    budget, level = memory.get("budget") or 0, str(said.get("level", "?"))
    used = (memory.get("share") or 0.0) * budget
    line = Text("  memory   ")
    line.append_text(memory_bar(memory.get("share") or 0.0, _shares(memory), level))
    line.append(f" {used / GB:.2f} of {budget / GB:.2f} GB  ")
    line.append(level, style=LEVEL_STYLE.get(level, ""))
    return line


def _shares(memory: dict[str, Any]) -> list[float]:
    budget = memory.get("budget") or 0
    return [line / budget for line in (memory.get("lines") or {}).values()] if budget else []


def memory_bar(share: float, lines: list[float], level: str) -> Text:
    """A bar whose right end is the last line; ``|`` stands where each line begins.

    :param lines: shares of the budget, rising.
    """
    whole = max([1.0, *lines])
    filled = min(BAR, round(share / whole * BAR))
    marks = {min(BAR - 1, round(line / whole * BAR)) for line in lines}
    bar = Text("[", style="dim")
    for place in range(BAR):
        if place in marks:
            bar.append("|", style="bold")
        elif place < filled:
            bar.append("■", style=LEVEL_STYLE.get(level, ""))
        else:
            bar.append("·", style="dim")
    return bar.append("]", style="dim")


def _engine(said: dict[str, Any]) -> Text:
    cores = said.get("cores") or {}
    parts = [f"busy {_percent(_in(said, 'steps', 'busy'))}"]
    parts += [f"{name} {cores[name]:.1f} cores" for name in ("engine", "media") if name in cores]
    if said.get("gpu") is not None:
        parts.append(f"GPU {_percent(said['gpu'])}")
    restarts = _in(said, "engine", "restarts") or 0
    line = Text(f"  engine   {'  '.join(parts)}  ")
    return line.append(f"{restarts} restarts", style="yellow" if restarts else "dim")


def _batches(said: dict[str, Any]) -> Text:
    steps = said.get("steps") or {}
    sizes = {int(size): count for size, count in (said.get("batch_rows") or {}).items()}
    count = sum(sizes.values())
    mean = sum(size * n for size, n in sizes.items()) / count if count else 0.0
    text = f"  batches  {mean:.1f} rows  slots {_percent(steps.get('occupancy'))}"
    text += f"  padding {_percent(steps.get('padding_waste'))}  buffers {_percent(steps.get('shape_reuse'))} reused"
    return Text(
        f"{text}\n  work     {said.get('jobs_per_min', 0):.1f} jobs/min  {said.get('audio_per_s', 0):.2f} s audio/s"
    )


def _told(said: dict[str, Any]) -> list[Text]:
    """A line for each of webhooks and RQ, where the worker does it."""
    return [Text(f"  {title:<8} {counts}") for title, counts in health.outside(said)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _in(told: Any, *names: str) -> Any:
    """A value some levels down; None where any of them is missing."""
    for name in names:
        told = told.get(name) if isinstance(told, dict) else None
    return told


# --- failures ---------------------------------------------------------------------------------------


def _failures(workers: Iterable[WorkerHealth]) -> list[RenderableType]:
    seen = sorted(
        ((one, worker.worker) for worker in workers for one in worker.fields.get("failures", ())),
        key=lambda pair: -pair[0].get("at_ms", 0),
    )[:FAILURES]
    if not seen:
        return [Text("No failures of late.", style="dim")]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("failed", no_wrap=True, min_width=8)
    table.add_column("worker", no_wrap=True, max_width=12)
    for title, width in (("outcome", 7), ("code", 14)):
        table.add_column(title, no_wrap=True, min_width=width)
    # Folded rather than cut: an id is there to be copied, and one that came from RQ is long.
    table.add_column("job", overflow="fold")
    for one, worker in seen:
        clock = time.strftime("%H:%M:%S", time.localtime(one.get("at_ms", 0) / 1000))
        cells = (clock, worker, one.get("outcome", ""), one.get("code", ""), one.get("job", ""))
        table.add_row(*(escape(str(cell)) for cell in cells))
    return [table]


def as_svg(seen: Snapshot, width: int = WIDTH) -> str:
    """The picture as an SVG image."""
    from io import StringIO

    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, highlight=False)
    # The last line is cut below its letters; let it be an empty one.
    console.print(picture(seen), "")
    # Without the fonts that rich would have fetched from the network by whoever looks at it.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="decibatch top", code_format=form)
