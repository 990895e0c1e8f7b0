"""``decibatch bench``."""

from __future__ import annotations

import click

from ops.commands.bench_faults import faults_command
from ops.commands.bench_overhead import overhead_command
from ops.commands.bench_speech import speech_command


@click.group("bench")
def bench_command() -> None:
    """Measure against the peers, in one run. Nothing here passes or fails."""


bench_command.add_command(faults_command)
bench_command.add_command(overhead_command)
bench_command.add_command(speech_command)
