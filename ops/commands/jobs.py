"""``decibatch status``, ``result`` and ``cancel``: one job that is there already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ops.commands.common import load_settings, open_client
from ops.exits import Exit, Trouble
from ops.formats import FORMATS, render

if TYPE_CHECKING:
    from queueing.protocol import JobStatus


@click.command("status")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def status_command(job: str, as_json: bool) -> None:
    """Show how far a job is."""
    status = open_client(load_settings()).status(job)
    fields = described(status)
    if as_json:
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    for name, value in fields.items():
        if value is not None:
            click.echo(f"{name:<9} {_plain(value)}")


@click.command("result")
@click.argument("job", metavar="JOB")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
def result_command(job: str, form: str) -> int:
    """Print what a job gave. Exit 3 where it gave nothing, 4 where it has not ended yet."""
    status = open_client(load_settings()).status(job)
    if status.result is not None:
        click.echo(render(status.result, form), nl=False)
        return Exit.OK
    if status.error is not None:
        raise Trouble(f"There is no result. {status.error.code}: {status.error.message}", Exit.FAILED)
    raise Trouble(f"The job has not ended: it is {status.state}.", Exit.TIMEOUT)


@click.command("cancel")
@click.argument("job", metavar="JOB")
def cancel_command(job: str) -> None:
    """Stop a job that has not ended, and print the state that it has then."""
    click.echo(open_client(load_settings()).cancel(job).value)


def described(status: JobStatus) -> dict[str, Any]:
    """A job for people and programs. Times are Unix seconds."""
    return {
        "job": status.job_id,
        "state": status.state.value,
        "model": status.model,
        "lane": status.lane,
        "tenant": status.tenant,
        "attempt": status.attempt,
        "created": status.created_ms / 1000,
        "started": _seconds(status.started_ms),
        "finished": _seconds(status.finished_ms),
        "error": status.error.model_dump(mode="json") if status.error else None,
        "webhook": status.hook_state,
    }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return f"{value['code']}: {value['message']}"
    if isinstance(value, float):
        from datetime import datetime

        return datetime.fromtimestamp(value).astimezone().isoformat(" ", "seconds")
    return str(value)
