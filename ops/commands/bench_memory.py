"""``decibatch bench memory``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ops.commands.common import console, load_settings


def _numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as exc:
        raise click.BadParameter("give numbers with commas between, such as 1,0.5") from exc
    if any(share <= 0 for share in shares):
        raise click.BadParameter("each is to be over 0")
    return shares


@click.command("memory")
@click.option("--jobs", type=click.IntRange(min=1), default=48, show_default=True, help="Clips of each run.")
@click.option(
    "--rounds",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Of half budget and sweep; 0 for none.",
)
@click.option(
    "--forecasts",
    type=click.IntRange(min=0),
    default=110,
    show_default=True,
    help="Batches of the check of predictions, which counts after 50; 0 leaves it out.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the picture there (PNG). Needs matplotlib.",
)
@click.option(
    "--shares",
    callback=_numbers,
    default="1,0.75,0.5,0.4",
    show_default=True,
    help="Budgets, as shares of what the load wants; with commas between.",
)
@click.option(
    "--fixed",
    callback=_numbers,
    default="1,2,4,8,16,32",
    show_default=True,
    help="Batch sizes of the sweep; with commas between.",
)
@click.option(
    "--items",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Rows that a batch may have where nothing holds it back.",
)
@click.option(
    "--wanted",
    "wanted_mb",
    type=click.IntRange(min=64),
    help="What it wants, MiB; unset, it is measured first.",
)
@click.option(
    "--leak",
    type=click.IntRange(min=1),
    metavar="BATCHES",
    help="Instead, run so many batches of mixed shapes, and tell whether memory stays flat. 2000 take minutes.",
)
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), hidden=True)
@click.option("--json", "as_json", is_flag=True, help="One object with `runs`.")
def memory_command(
    *,
    jobs: int,
    rounds: int,
    forecasts: int,
    shares: tuple[float, ...],
    fixed: tuple[float, ...],
    items: int,
    wanted_mb: int | None,
    plot: Path | None,
    log: Path | None,
    leak: int | None,
    as_json: bool,
) -> None:
    """One and the same real load at budgets from ample to tight, against fixed batch sizes.

    Prints throughput, jobs refused and lost, time at each level, the greatest overshoot, and how well the peaks of
    batches were predicted.
    """
    from ops.bench.memory.run import Order, run

    screen = console()
    if leak is not None:
        from ops.bench.memory import leak as leak_bench

        found = leak_bench.run(
            load_settings(), leak, tell=lambda line: screen.print(f"· {line}", markup=False)
        )
        click.echo(json.dumps(found) if as_json else leak_bench.sentence(found))
        return
    if plot is not None:
        # Now, and not after minutes of work, is the time to say that matplotlib is missing.
        from ops.bench.memory.plot import draw, pyplot

        pyplot()
    order = Order(jobs, rounds, shares, tuple(map(int, fixed)), wanted_mb, items, forecasts)
    told, runs = run(load_settings(), order, tell=lambda line: screen.print(f"· {line}", markup=False))
    if log is not None:
        log.write_text(json.dumps({name: [*each.told.lines] for name, each in runs.items()}))
    if plot is not None:
        draw(runs, plot)
        screen.print(f"· {plot} is drawn", markup=False)
    if as_json:
        click.echo(json.dumps(told))
    else:
        print_tables(told)


def print_tables(told: dict[str, Any]) -> None:
    """For people, on standard output."""
    from rich.console import Console
    from rich.table import Table

    screen = Console(highlight=False)
    table = Table(
        "run",
        "budget MiB",
        "clips/s",
        "refused",
        "lost",
        "peak MiB",
        "over",
        "s at queue/shrink/pause",
        "bits",
    )
    for row in told["runs"]:
        levels = "/".join(f"{row['seconds_at'][level]:g}" for level in ("queue", "shrink", "pause"))
        moves = ", ".join(f"{move['from']} to {move['to']}" for move in row["requantizations"])
        figures = (row["budget_mb"], row["throughput"], row["refused"], row["lost"], row["peak_mb"])
        table.add_row(row["name"], *map(str, figures), f"{row['overshoot']:.1%}", levels, moves or "-")
    screen.print(table)
    if "sweep" in told:
        print_sweep(screen, told)
    if "forecasts" in told:
        found = told["forecasts"]
        screen.print(
            f"predicted within 15 % of the measured peak: {found['within_15_pct']:.1%} of {found['batches']} batches, "
            f"lowest {found['lowest']:+.1%}"
        )


def print_sweep(screen: Any, told: dict[str, Any]) -> None:
    """Fixed batch sizes, and how the governed run stands beside them."""
    from rich.table import Table

    sweep = Table("at half the budget, at most rows", "clips/s", "peak MiB", "within the budget")
    for row in told["sweep"]:
        sweep.add_row(
            *(str(row[name]) for name in ("batch_items", "throughput", "peak_mb", "within_half_budget"))
        )
    screen.print(sweep)
    ratio = told["half_budget_throughput_ratio"]
    found = "no fixed size stays within it" if ratio is None else ratio
    screen.print(f"at half the budget, the governor against the best fixed size: {found}")
