"""``decibatch dead``: jobs that were given up on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ops.commands.common import load_settings
from ops.commands.jobs import described
from ops.settings import mask_url

if TYPE_CHECKING:
    from queueing.dead import DeadList
    from queueing.protocol import JobStatus


@click.group("dead")
def dead_command() -> None:
    """Look at jobs that were given up on, try them again, or drop them."""


@dead_command.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def list_command(limit: int, as_json: bool) -> None:
    """List the dead, latest first."""
    with _dead_list() as dead:
        found = dead.latest(limit)
    for status in found:
        if as_json:
            click.echo(json.dumps(_told(status), ensure_ascii=False))
        else:
            why = f"{status.error.code}: {status.error.message}" if status.error else ""
            click.echo(f"{status.job_id}  {status.model}  attempts {status.attempt}  {why}")
    if not found and not as_json:
        click.echo("No job is dead.", err=True)


@dead_command.command("show")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def show_command(job: str, as_json: bool) -> None:
    """Show a dead job: its input, and how each attempt failed on which version."""
    with _dead_list() as dead:
        told = _told(dead.show(job))
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    notes = told.pop("notes")
    for name, value in told.items():
        click.echo(f"{name:<9} {json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value}")
    for note in notes:
        where = f"{note['worker']} {note['version']}"
        click.echo(f"attempt {note['attempt']} on {where}: {note['code']}: {note['message']}")


@dead_command.command("retry")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
def retry_command(jobs: tuple[str, ...]) -> None:
    """Let dead jobs wait again."""
    with _dead_list() as dead:
        for job in jobs:
            dead.retry(job)
            click.echo(f"{job} waits again")


@dead_command.command("drop")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
def drop_command(jobs: tuple[str, ...]) -> None:
    """Forget dead jobs for good."""
    with _dead_list() as dead:
        for job in jobs:
            dead.drop(job)
            click.echo(f"{job} is forgotten")


@contextmanager
def _dead_list() -> Iterator[DeadList]:
    from queueing.connect import connect
    from queueing.dead import DeadList
    from queueing.keys import Keys
    from queueing.protocol import Queue

    settings = load_settings()
    url = settings.redis_url.get_secret_value()
    with connect(url) as redis:
        yield DeadList(redis, Queue(Keys(settings.queue)), server=mask_url(url))


def _told(status: JobStatus) -> dict[str, Any]:
    return {
        **described(status),
        "input": _input(status.payload),
        "notes": [note.model_dump(mode="json") for note in status.notes],
    }


def _input(payload: bytes) -> Any:
    """What the job was to work on; None where the payload is not even JSON."""
    try:
        fields = json.loads(payload)
    except ValueError:
        return None
    return fields.get("input") if isinstance(fields, dict) else None
