"""``decibatch bench soak``."""

from __future__ import annotations

import click

from ops.commands.common import console
from ops.exits import Exit


@click.command("soak")
@click.option("--jobs", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option(
    "--run",
    "run_jobs",
    type=click.IntRange(min=1),
    default=30_000,
    show_default=True,
    help="Jobs that a worker does, at least; the rest is cancelled.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of lanes and tenants.")
@click.option("--clients", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes.")
@click.option(
    "--hold",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds for which everything waits beside an idle worker.",
)
@click.option("--ttl", type=click.IntRange(min=1), default=30, show_default=True, help="Of results, seconds.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def soak_command(
    *, jobs: int, run_jobs: int, seed: int, clients: int, hold: float, ttl: int, as_json: bool
) -> int:
    """Let very many jobs wait, and see what they cost and whether everything is given back.

    Server, workers with a stand-in for the engine and audio are of its own. Exits with 3 where a waiting job takes
    more than 1,500 bytes of the server, a worker's memory grows, a job is unaccounted for, or anything is
    left once the results have expired.
    """
    from ops.bench.soak.run import Order, run

    screen = console()
    order = Order(jobs, min(run_jobs, jobs), seed, clients, hold, ttl)
    told = run(order, tell=lambda line: screen.print(f"· {line}", markup=False))
    if as_json:
        click.echo(told.as_json())
    else:
        for name, value in told.as_dict().items():
            click.echo(f"{name.replace('_', ' ')}: {value}")
    return Exit.FAILED if told.failings else Exit.OK
