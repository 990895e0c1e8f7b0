"""Shows jobs as they go: a table that redraws itself on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ops.follow import Tracked
from queueing.job import State

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

BAR_CELLS = 12
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STYLES = {
    State.WAITING: "dim",
    State.RUNNING: "cyan",
    State.DONE: "green",
    State.FAILED: "red",
    State.DEAD: "red",
    State.CANCELLED: "yellow",
    State.EXPIRED: "yellow",
}


def show(console: Console, jobs: Sequence[Tracked], changes: Iterable[Tracked]) -> None:
    """Consume ``changes`` and show them on ``console`` until they end."""
    if console.is_terminal:
        _show_live(console, jobs, changes)
    else:
        _show_lines(console, changes)


def _show_live(console: Console, jobs: Sequence[Tracked], changes: Iterable[Tracked]) -> None:
    from rich.live import Live

    with Live(get_renderable=lambda: _table(console, jobs), console=console, refresh_per_second=10):
        for _ in changes:
            pass


def _show_lines(console: Console, changes: Iterable[Tracked]) -> None:
    """A line for each new state: partial text and steps would fill a log."""
    said: dict[int, str] = {}
    for job in changes:
        line = sentence(job)
        if said.get(id(job)) != line:
            said[id(job)] = line
            console.print(line, markup=False)


def sentence(job: Tracked) -> str:
    """How a job stands, in one line without its transcript."""
    match job.state:
        case State.DONE:
            assert job.result is not None
            audio, total = job.result.duration_s, job.result.timings.total
            return f"{job.name}: done, {audio:.1f} s of audio in {total:.1f} s"
        case State.RUNNING if job.attempt > 1:
            return f"{job.name}: running, attempt {job.attempt}"
        case _ if job.error is not None:
            return f"{job.name}: {job.state}, {job.error.code}: {job.error.message}"
        case _:
            return f"{job.name}: {job.state}"


def _table(console: Console, jobs: Sequence[Tracked]) -> RenderableType:
    from rich.table import Table

    now = time.monotonic()
    # Unfinished ones first where not all fit: what is over needs no watching.
    room = max(1, console.height - 2)
    rows = list(jobs) if len(jobs) <= room else sorted(jobs, key=lambda job: job.state.terminal)[:room]
    table = Table(box=None, show_header=False, pad_edge=False, expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
    table.add_column(no_wrap=True, width=10)
    table.add_column(no_wrap=True, width=BAR_CELLS)
    table.add_column(no_wrap=True, justify="right", width=7)
    table.add_column(no_wrap=True, ratio=1)
    width = max(10, console.width - 28 - 10 - BAR_CELLS - 7 - 8)
    for job in rows:
        seconds = (job.ended_at or now) - job.sent_at
        table.add_row(job.name, _state(job, now), _bar(job), f"{seconds:.1f} s", _tail(job, width))
    return table


def _state(job: Tracked, now: float) -> Text:
    from rich.text import Text

    mark = FRAMES[int(now * 10) % len(FRAMES)] if job.state is State.RUNNING else " "
    word = {"media": "decoding", "engine": "running"}.get(job.stage, "running")
    return Text(
        f"{mark} {word if job.state is State.RUNNING else job.state}", style=STYLES.get(job.state, "")
    )


def _bar(job: Tracked) -> Text:
    from rich.text import Text

    if job.state is State.DONE:
        return Text("━" * BAR_CELLS, style="green")
    if job.state is State.RUNNING and job.stage == "media" and job.done:
        # Of how many is not known while the rest is decoded.
        return Text(f"{job.done} of ?", style="cyan")
    if job.state is not State.RUNNING or not job.total or job.stage != "engine":
        return Text("")
    filled = round(BAR_CELLS * min(1.0, job.done / job.total))
    return Text("━" * filled, style="cyan").append("━" * (BAR_CELLS - filled), style="bright_black")


def _tail(job: Tracked, width: int) -> Text:
    """The end of the text so far: what was just heard is what one watches."""
    from rich.text import Text

    if job.error is not None:
        return Text(f"{job.error.code}: {job.error.message}", style="red", overflow="ellipsis", no_wrap=True)
    words = " ".join(job.text.split())
    return Text(words if len(words) <= width else "…" + words[-(width - 1) :], style="dim", no_wrap=True)
