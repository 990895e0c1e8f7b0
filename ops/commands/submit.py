"""``decibatch submit``: send inputs, and wait for them where asked."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.commands.common import console, load_settings, open_client
from ops.exits import Exit
from ops.follow import Tracked, follow
from ops.formats import FORMATS, render
from ops.interrupts import Interrupts
from ops.progress import sentence, show
from ops.settings import MIB
from queueing.errors import DecibatchError
from queueing.flows import Submission
from queueing.job import KINDS, LANES, ErrorInfo, State

if TYPE_CHECKING:
    from ops.settings import Settings
    from queueing.client import Client

Options = dict[str, Any]
"""Keywords of a Submission."""

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@click.command("submit")
@click.argument("inputs", metavar="FILE|URL...", nargs=-1, required=True)
@click.option("--kind", type=click.Choice(list(KINDS)), default="transcribe", show_default=True)
@click.option("--model", help="Alias of the model. [default: DECIBATCH_MODEL]")
@click.option(
    "--lane", type=click.Choice([lane.value for lane in LANES]), default="normal", show_default=True
)
@click.option("--language", help="ISO 639-1 code; without it the model detects the language.")
@click.option("--words", is_flag=True, help="Give words their times: in JSON, and within the cues of vtt.")
@click.option(
    "--beam-size",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Lines that the search follows; more cost more.",
)
@click.option(
    "--min-bits",
    type=click.Choice(["4", "8", "16"]),
    default="4",
    show_default=True,
    help="Fewest bits of each weight: workers short of memory move models to fewer.",
)
@click.option("--hot-word", "hot_words", multiple=True, help="A name or term likely to be said; repeatable.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="With --wait."
)
@click.option("--upload", is_flag=True, help="Send the bytes: the worker need not see the file.")
@click.option("--webhook", metavar="URL", help="Told the end by a signed POST.")
@click.option("--wait", is_flag=True, help="Show progress, then print the transcripts.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="Seconds to wait; the jobs go on after it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one object for each input, one per line.")
def submit_command(
    inputs: tuple[str, ...],
    *,
    kind: str,
    model: str | None,
    lane: str,
    language: str | None,
    words: bool,
    beam_size: int,
    min_bits: str,
    hot_words: tuple[str, ...],
    form: str,
    upload: bool,
    webhook: str | None,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Send files or URLs to be transcribed.

    A FILE is named to the worker by its absolute path, unless --upload sends the file itself.

    Exit codes: 0 all done (or sent, without --wait), 2 wrong usage, 3 a job failed, 4 time-out, 5 no server.
    """
    if form in ("srt", "vtt") and len(inputs) > 1 and not as_json:
        raise click.UsageError(f"{form} is a file of its own: give one input at a time, or take --json.")
    settings = load_settings()
    client = open_client(settings)
    options: Options = {
        "kind": kind,
        "model": model,
        "lane": lane,
        "language": language,
        "words": words,
        "beam_size": beam_size,
        "min_bits": int(min_bits),
        "hot_words": hot_words,
        "result_ttl_s": settings.result_ttl_s,
        "webhook": webhook,
    }
    jobs = [Tracked(text, short_name(text)) for text in inputs]
    send(client, settings, jobs, upload=upload, options=options)
    if wait:
        await_all(client, jobs, timeout_s)
    for job in jobs:
        click.echo(line_of(job, wait) if as_json else shown(job, wait, form, several=len(jobs) > 1), nl=False)
    return exit_code(jobs, wait)


def send(
    client: Client, settings: Settings, jobs: Sequence[Tracked], *, upload: bool, options: Options
) -> None:
    """Send every input. What cannot be read, or is refused, is a failed job."""
    if upload:
        for job in jobs:
            if _URL.match(job.input):
                _send_some(client, [job], [job.input], options)
            else:
                _upload(client, job, settings.max_inline_mb_per_job * MIB, options)
    else:
        _send_some(client, jobs, [_named(job.input) for job in jobs], options)


def _named(text: str) -> str:
    """A URL as it is, a file by its absolute path."""
    return text if _URL.match(text) else str(Path(text).expanduser().absolute())


def _upload(client: Client, job: Tracked, max_bytes: int, options: Options) -> None:
    path = Path(job.input).expanduser()
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= max_bytes else b""
    except FileNotFoundError:
        job.end(ErrorInfo(code="input_not_found", message="there is no such file"), State.FAILED)
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        job.end(ErrorInfo(code="input_unreadable", message=f"the file cannot be read: {why}"), State.FAILED)
    else:
        if size > max_bytes:
            why = f"{size} bytes are more than the {max_bytes} that an upload may have"
            job.end(ErrorInfo(code="too_large", message=why), State.FAILED)
        else:
            _send_some(client, [job], [data], options)


def _send_some(
    client: Client, jobs: Sequence[Tracked], inputs: Sequence[str | bytes], options: Options
) -> None:
    answers = client.submit_many(Submission(what, **options) for what in inputs)
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, DecibatchError):
            job.end(ErrorInfo(code=answer.code, message=str(answer), retryable=True), State.FAILED)
        else:
            job.job = str(answer)


def short_name(text: str) -> str:
    return text.rstrip("/").rsplit("/", 1)[-1].partition("?")[0] or text


def await_all(client: Client, jobs: Sequence[Tracked], timeout_s: float | None) -> None:
    """Show progress until all have ended, or the time is over, or ^C."""
    screen = console()
    sent = sum(job.job is not None for job in jobs)
    many = ("job is", "it") if sent == 1 else ("jobs are", "them")
    interrupts = Interrupts()
    try:
        screen.print(f"{sent} {many[0]} in the queue; ^C leaves {many[1]} there")
        show(screen, jobs, follow(client, jobs, timeout_s=timeout_s, check=interrupts.check))
    except KeyboardInterrupt:
        going = [job.job for job in jobs if job.job and not job.state.terminal]
        screen.print("The jobs go on. See after them with decibatch status, stop them with decibatch cancel:")
        for job_id in going:
            screen.print(f"  {job_id}", markup=False)
        raise


def line_of(job: Tracked, wait: bool) -> str:
    """The JSON object of one input."""
    fields: dict[str, Any] = {"job": job.job, "input": job.input, "state": job.state.value}
    if wait or job.error is not None:
        result = job.result.model_dump(mode="json") if job.result else {}
        for name in ("text", "language", "duration_s", "timings"):
            fields[name] = result.get(name)
        fields["segments"] = result.get("segments", [])
        fields["error"] = job.error.model_dump(mode="json") if job.error else None
    return json.dumps(fields, ensure_ascii=False) + "\n"


def shown(job: Tracked, wait: bool, form: str, *, several: bool) -> str:
    """One input for people: without --wait a line, with it the transcript or why there is none."""
    if not wait:
        return f"{job.job or '-'}\t{job.state.value}\t{job.input}\n"
    if job.result is None:
        # Progress in lines has told the end of each job already; the table on a terminal cuts long errors.
        if job.job is None or not job.state.terminal or sys.stderr.isatty():
            click.echo(f"decibatch: {sentence(job)}", err=True)
        return ""
    body = render(job.result, form)
    return f"# {job.input}\n{body}\n" if several and form == "text" else body


def exit_code(jobs: Sequence[Tracked], wait: bool) -> Exit:
    """4 outranks 3 outranks 0."""
    if wait and any(not job.state.terminal for job in jobs):
        return Exit.TIMEOUT
    return Exit.FAILED if any(job.error is not None for job in jobs) else Exit.OK
