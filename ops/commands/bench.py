"""``decibatch bench``."""

from __future__ import annotations

import signal

import click

from ops.commands.bench_faults import faults_command
from ops.commands.bench_import import import_command
from ops.commands.bench_memory import memory_command
from ops.commands.bench_overhead import overhead_command
from ops.commands.bench_search import search_command
from ops.commands.bench_soak import soak_command
from ops.commands.bench_speech import speech_command


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
bench_command.add_command(speech_command)
bench_command.add_command(import_command)
bench_command.add_command(search_command)
