"""The demo: a server and a worker of its own, real recordings side by side, and nothing left at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ops import recordings, stack
from ops.exits import Exit, Trouble
from ops.follow import Tracked, follow
from ops.interrupts import Interrupts
from ops.progress import show

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

TIMEOUT_S = 300.0


def run(console: Console, model: str) -> Exit:
    """Returns Exit.OK where every recording was transcribed. Raises Trouble with what went wrong."""
    from queueing.client import Client

    interrupts = Interrupts()
    files = _recordings()
    with stack.running(
        model=model,
        tell=lambda sentence: console.print(f"· {sentence}", markup=False),
        check=interrupts.check,
    ) as own:
        console.print(f"· a worker is ready, with {model}")
        console.print(f"· {len(files)} recordings go in side by side\n")
        client = Client(own.url, queue=stack.QUEUE, model=model)
        jobs = [Tracked(str(path), path.name, str(client.submit(str(path)))) for path in files]
        show(console, jobs, follow(client, jobs, timeout_s=TIMEOUT_S, check=interrupts.check))
        own.check()
    interrupts.check()
    _print_outcome(console, jobs)
    failed = [job for job in jobs if job.result is None]
    if failed:
        raise Trouble(f"{len(failed)} of {len(jobs)} recordings were not transcribed.", Exit.FAILED)
    console.print("The worker and the server have ended; nothing is left running.")
    return Exit.OK


def _recordings() -> list[Path]:
    try:
        return recordings.spoken()
    except recordings.RecordingsMissing as exc:
        raise Trouble(str(exc)) from exc


def _print_outcome(console: Console, jobs: Sequence[Tracked]) -> None:
    console.print()
    for job in jobs:
        console.print(f"[bold]{job.name}[/]")
        if job.result is not None:
            # In a log a transcript stays one line, to be searched.
            console.print(job.result.text.strip(), markup=False, soft_wrap=not console.is_terminal)
        elif job.error is not None:
            console.print(f"{job.state}: {job.error.code}: {job.error.message}", markup=False, style="red")
        else:
            console.print(f"{job.state} after {TIMEOUT_S:.0f} s", style="red")
        console.print()
    console.print(_timings(jobs))
    console.print()


def _timings(jobs: Sequence[Tracked]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    table.add_column("seconds")
    for title in ("audio", "queued", "media", "waiting", "engine", "total"):
        table.add_column(title, justify="right")
    for job in jobs:
        if job.result is not None:
            times = job.result.timings
            parts = (times.queued, times.media, times.waiting, times.engine, times.total)
            table.add_row(job.name, f"{job.result.duration_s:.1f}", *(f"{seconds:.2f}" for seconds in parts))
    return table
