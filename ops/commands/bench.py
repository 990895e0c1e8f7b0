"""``decibatch bench``."""

from __future__ import annotations

import json
import signal
from typing import Any

import click

from ops.commands.bench_faults import faults_command
from ops.commands.bench_memory import memory_command
from ops.commands.bench_overhead import overhead_command
from ops.commands.bench_soak import soak_command
from ops.commands.common import console, load_settings


@click.group("bench")
def bench_command() -> None:
    """Measure: against the peers, under faults, over many jobs."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: object) -> None:
    """SIGTERM: as an exception, so that processes and folders of the run are cleared away. Once: a second one that came
    into the clearing would stop it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


bench_command.add_command(faults_command)
bench_command.add_command(memory_command)
bench_command.add_command(overhead_command)
bench_command.add_command(soak_command)


@bench_command.command("speech")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of which medians are taken."
)
@click.option("--json", "as_json", is_flag=True, help="One object with `rows`.")
def speech_command(rounds: int, as_json: bool) -> None:
    """Short clips, eight at a time, against mlx-audio one after another."""
    from ops.bench import speech

    screen = console()
    told = speech.run(
        load_settings(), rounds=rounds, tell=lambda line: screen.print(f"· {line}", markup=False)
    )
    if as_json:
        click.echo(json.dumps(told))
        return
    for row in told["rows"]:
        click.echo(as_sentence(row))
    click.echo(", ".join(f"{name} {value}" for name, value in told.items() if name != "rows"))


def as_sentence(row: dict[str, Any]) -> str:
    return (
        f"{row['work']}: {row['ours']} (WER {row['wer']:.1%}); {row['against']}: {row['theirs']} "
        f"(WER {row['wer_theirs']:.1%}); {row['ratio']} times"
    )
