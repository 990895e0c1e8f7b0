"""``decibatch webhooks``: ends of jobs that nobody took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ops.commands.common import load_settings
from ops.settings import mask_url

if TYPE_CHECKING:
    from queueing.undelivered import Undelivered


@click.group("webhooks")
def webhooks_command() -> None:
    """Look at webhooks that were given up, or have them sent again."""


@webhooks_command.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def list_command(limit: int, as_json: bool) -> None:
    """List webhooks that were given up, latest first."""
    with _undelivered() as undelivered:
        found = undelivered.latest(limit)
    for status in found:
        told = {"job": status.job_id, "state": status.state.value, "reason": status.hook_error}
        click.echo(json.dumps(told) if as_json else "  ".join(str(value) for value in told.values()))
    if not found and not as_json:
        click.echo("No webhook was given up.", err=True)


@webhooks_command.command("retry")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
def retry_command(jobs: tuple[str, ...]) -> None:
    """Send webhooks again that were given up."""
    with _undelivered() as undelivered:
        for job in jobs:
            undelivered.again(job)
            click.echo(f"{job} is sent again")


@contextmanager
def _undelivered() -> Iterator[Undelivered]:
    from queueing.connect import connect
    from queueing.keys import Keys
    from queueing.protocol import Queue
    from queueing.undelivered import Undelivered

    settings = load_settings()
    url = settings.redis_url.get_secret_value()
    with connect(url) as redis:
        yield Undelivered(redis, Queue(Keys(settings.queue)), server=mask_url(url))
