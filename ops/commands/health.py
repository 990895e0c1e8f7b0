"""``decibatch health``."""

from __future__ import annotations

import json

import click

from ops import health
from ops.commands.common import load_settings
from ops.exits import Exit


@click.command("health")
@click.option(
    "--json", "as_json", is_flag=True, help="One object: `working`, and `workers` as each describes itself."
)
def health_command(as_json: bool) -> int:
    """Tell whether some worker is ready and progressing; exit 0 only then."""
    settings = load_settings()
    workers = health.read(settings.redis_url.get_secret_value(), settings.queue)
    working = any(worker.working for worker in workers)
    if as_json:
        click.echo(json.dumps({"working": working, "workers": [worker.as_json() for worker in workers]}))
    elif workers:
        from rich.console import Console

        screen = Console(highlight=False)
        screen.print(health.as_table(workers))
        for worker in workers:
            for title, counts in health.outside(worker.fields):
                screen.print(f"{worker.worker}  {title}: {counts}", markup=False)
    else:
        click.echo(f"No worker is alive on the queue {settings.queue}.")
    return Exit.OK if working else Exit.UNHEALTHY
