"""``decibatch top``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ops.commands.common import load_settings
from ops.exits import Exit
from queueing.errors import ServerUnavailable


@click.command("top")
@click.option(
    "--every",
    type=click.FloatRange(min=0.2),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print one look and end.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write one look as a picture and end."
)
def top_command(*, every: float, once: bool, svg: Path | None) -> int:
    """Watch lanes, workers, memory, batches, latencies and failures; ^C ends.

    It reads Redis alone, so it works from any host that reaches it. Latencies are of the last five minutes;
    with several workers, those of the slowest.
    """
    from rich.console import Console
    from rich.live import Live

    from ops import top

    settings = load_settings()
    url, queue = settings.redis_url.get_secret_value(), settings.queue
    seen = top.read(url, queue)
    screen = Console(highlight=False)
    if svg is not None:
        svg.write_text(top.as_svg(seen), "utf-8")
    elif once or not screen.is_terminal:
        screen.print(top.picture(seen))
    else:
        with Live(top.picture(seen), console=screen, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(every)
                    away = ""
                    try:
                        seen = top.read(url, queue)
                    except ServerUnavailable as exc:
                        away = str(exc)
                    live.update(top.picture(seen, away=away), refresh=True)
            except KeyboardInterrupt:
                pass
    return Exit.OK
