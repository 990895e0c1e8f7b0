"""``decibatch bench speech``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ops.commands.common import console, load_settings

PEERS = ("mlx-audio", "faster-whisper", "mlx-whisper")
WORKS = ("clips", "shipped", "one", "long", "mixed")


def _choice(known: tuple[str, ...]) -> Any:
    def chosen(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return names

    return chosen


@click.command("speech")
@click.option(
    "--against", callback=_choice(PEERS), default=",".join(PEERS), show_default=True, help="Peers, by commas."
)
@click.option(
    "--work", callback=_choice(WORKS), default=",".join(WORKS), show_default=True, help="Rows, by commas."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of which medians are taken."
)
@click.option(
    "--limit",
    type=click.FloatRange(min=0),
    default=150.0,
    show_default=True,
    help="Seconds of one work after which no further round begins.",
)
@click.option(
    "--long",
    "long_s",
    type=click.FloatRange(min=30, max=3600),
    default=300.0,
    show_default=True,
    help="Seconds of the long file.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Measure nothing; draw where the time of twelve jobs goes, as an SVG.",
)
@click.option("--json", "as_json", is_flag=True, help="One object with `rows`.")
def speech_command(
    *,
    against: tuple[str, ...],
    work: tuple[str, ...],
    rounds: int,
    limit: float,
    long_s: float,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Real speech through the whole path, beside the peers: same weights, audio and machine, rounds in turn.

    Peers that do not go with our own requirements get environments under the cache folder, made when they are first
    needed. One that cannot be installed is a row that says so.
    """
    screen = console()

    def tell(line: str) -> None:
        screen.print(f"· {line}", markup=False)

    if trace is not None:
        from ops.bench.speech.trace import draw

        trace.write_text(draw(load_settings(), tell), "utf-8")
        return
    from ops.bench.speech.run import Order, run

    told = run(load_settings(), Order(work, against, rounds, limit, long_s), tell)
    if as_json:
        click.echo(json.dumps(told))
    else:
        print_table(told)


def print_table(told: dict[str, Any]) -> None:
    """For people, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table("work", "against", "ours", "theirs", "ours/theirs", "aim", "WER", "WER theirs")
    for row in told["rows"]:
        figures = ["-"] * 2
        if "unavailable" not in row:
            low, high = row["spread"]
            figures = [f"{row['theirs']:.2f}", f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"]
        rates = ("-" if rate is None else f"{rate:.1%}" for rate in (row["wer"], row["wer_theirs"]))
        ours = f"{row['ours']:.2f} {row['unit']}"
        table.add_row(row["work"], row["against"], ours, *figures, row["aim"] or "", *rates)
    screen = Console(highlight=False)
    screen.print(table)
    for row in told["rows"]:
        if "unavailable" in row:
            screen.print(f"{row['against']} was not measured: {row['unavailable']}", markup=False)
    for name, batches in told["batches"].items():
        screen.print(f"{name}: {as_sentence(batches)}", markup=False)
    screen.print(f"{told['machine']}, {told['date']}, {told['model']}", markup=False)


def as_sentence(batches: dict[str, Any]) -> str:
    """What the step log says of a work; what it does not tell is left out."""
    mean = batches["mean_rows"]
    said = [f"{mean[kind]:g} rows in a step of the {kind}r" for kind in ("encode", "decode") if mean[kind]]
    if batches["occupancy"] is not None:
        said.append(f"{batches['occupancy']:.0%} of the slots taken")
    if batches["padding_waste"] is not None:
        said.append(f"{batches['padding_waste']:.0%} of what is encoded is padding")
    return ", ".join(said) or "no steps"
