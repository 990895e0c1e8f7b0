"""``decibatch bench overhead``."""

from __future__ import annotations

import json
from typing import Any

import click

from ops.commands.common import console, load_settings

NAMES = ("rq", "rq-simple", "arq", "taskiq", "docket")


def _names(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}")
    return names


@click.command("overhead")
@click.option("--jobs", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option(
    "--idle", type=click.IntRange(min=2), default=200, show_default=True, help="Jobs sent one at a time."
)
@click.option(
    "--against", callback=_names, default=",".join(NAMES), show_default=True, help="Separated by commas."
)
@click.option("--without-media", is_flag=True, help="Leave out the row in which we really decode.")
@click.option("--json", "as_json", is_flag=True, help="One object with `rows`.")
def overhead_command(
    *, jobs: int, rounds: int, idle: int, against: tuple[str, ...], without_media: bool, as_json: bool
) -> None:
    """No-op jobs through an engine of its own, against other queues.

    Peers that do not go with our own requirements get environments under the cache folder, made when they are
    first needed. One that cannot be installed is a row that says so.
    """
    from engine.config import default_cache_dir
    from ops.bench.overhead.peers import BY_NAME
    from ops.bench.overhead.run import Order, run

    screen = console()
    peers = tuple(BY_NAME[name] for name in against)
    order = Order(peers, jobs=jobs, rounds=rounds, idle=idle, with_media=not without_media)
    cache = load_settings().cache_dir or default_cache_dir()
    told = run(order, cache=cache.expanduser(), tell=lambda line: screen.print(f"· {line}", markup=False))
    if as_json:
        click.echo(json.dumps(told))
    else:
        print_table(told)


def print_table(told: dict[str, Any]) -> None:
    """For people, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "version", "jobs/s", "ours/theirs", "p50 ms", "p99 ms", "durable")
    for row in told["rows"]:
        figures = ["-"] * 4
        if row["available"]:
            latency = row["latency_ms"]
            low, high = row["ratio_range"]
            figures = [
                str(row["jobs_per_s"]),
                f"{row['ratio']} ({low}-{high})",
                str(latency["p50"]),
                str(latency["p99"]),
            ]
        table.add_row(row["name"], row["version"], *figures, "yes" if row["durable"] else "no")
    screen = Console(highlight=False)
    screen.print(table)
    for row in told["rows"]:
        if not row["available"]:
            screen.print(f"{row['name']} is not available: {row['unavailable']}", markup=False)
    for note in told["notes"]:
        screen.print(note, markup=False)
