"""``decibatch bench faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ops.commands.common import console
from ops.exits import Exit

if TYPE_CHECKING:
    from ops.bench.faults.report import Report


@click.command("faults")
@click.option("--jobs", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=80.0,
    show_default=True,
    help="For which jobs are submitted and faults strike.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same script.")
@click.option("--faults", type=click.IntRange(min=0), default=130, show_default=True)
@click.option("--workers", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--lease", type=click.FloatRange(min=0.3), default=1.0, show_default=True, help="Seconds.")
@click.option("--quiet", type=click.FloatRange(min=1), default=20.0, hidden=True)
@click.option("--without-fence", is_flag=True, hidden=True)
@click.option("--without-recovery", is_flag=True, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="One object.")
def faults_command(
    *,
    jobs: int,
    seconds: float,
    seed: int,
    faults: int,
    workers: int,
    lease: float,
    quiet: float,
    without_fence: bool,
    without_recovery: bool,
    as_json: bool,
) -> int:
    """Kill workers, engines, decoders, the server and connections under load, and count.

    Everything is of its own: server, workers with a stand-in for the engine, audio. Exits with 3 where a job
    was lost, ended twice or came back with another's text.
    """
    from ops.bench.faults.fleet import Manner
    from ops.bench.faults.run import Order, run

    screen = console()
    manner = Manner(lease, fenced=not without_fence, recovers=not without_recovery)
    order = Order(seed, jobs, faults, seconds, workers, quiet, manner)
    told = run(order, tell=lambda line: screen.print(f"· {line}", markup=False))
    if as_json:
        click.echo(told.as_json())
    else:
        print_table(told)
    return Exit.OK if told.sound else Exit.FAILED


def print_table(told: Report) -> None:
    """For people, on standard output."""
    from rich.console import Console
    from rich.table import Table

    from ops.bench.faults.report import rows

    table = Table(show_header=False, box=None)
    for name, value in rows(told):
        table.add_row(name, str(value))
    Console(highlight=False).print(table)
