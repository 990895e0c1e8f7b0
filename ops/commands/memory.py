"""``decibatch memory``."""

from __future__ import annotations

import json
import time

import click

from ops import health
from ops.commands.common import load_settings
from ops.exits import Exit
from ops.settings import mask_url
from queueing.connect import connect
from queueing.faults import translated
from queueing.keys import Keys


@click.command("memory")
@click.option("--watch", is_flag=True, help="Show it again and again until interrupted.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds, with --watch."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One object with `workers` and `events`; with --watch one a line.",
)
def memory_command(*, watch: bool, every: float, as_json: bool) -> int:
    """Show what each worker's memory governor holds, allows and has decided.

    Exit 1 where no worker is alive.
    """
    from rich.console import Console
    from rich.live import Live

    from ops import memory

    settings = load_settings()
    url, keys = settings.redis_url.get_secret_value(), Keys(settings.queue)
    with translated(mask_url(url)), connect(url, max_connections=1) as client:
        live = Live(console=Console(highlight=False), screen=True, auto_refresh=False)
        if watch and not as_json:
            live.start()
        try:
            while True:
                workers, decided = health.read_with(client, keys), memory.events(client, keys)
                if as_json:
                    click.echo(json.dumps(memory.as_json(workers, decided)))
                elif watch:
                    live.update(memory.screen(workers, decided), refresh=True)
                elif workers:
                    Console(highlight=False).print(memory.screen(workers, decided))
                else:
                    click.echo(f"No worker is alive on the queue {settings.queue}.")
                if not watch:
                    return Exit.OK if workers else Exit.UNHEALTHY
                time.sleep(every)
        finally:
            live.stop()
