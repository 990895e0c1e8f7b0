"""``decibatch bench import``."""

from __future__ import annotations

import json

import click


@click.command("import")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=11, show_default=True, help="Of which medians are taken."
)
@click.option("--json", "as_json", is_flag=True, help="One object with `rows`.")
def import_command(rounds: int, as_json: bool) -> None:
    """Start-up that the client costs a web application, beyond the bare interpreter."""
    from ops.bench import imports

    told = imports.run(rounds)
    if as_json:
        click.echo(json.dumps(told))
        return
    for row in told["rows"]:
        click.echo(
            f"{row['step']:<12} {row['ms']:>7} ms  {row['more_ms']:+7.1f}   "
            f"processor {row['cpu_ms']:>7} ms  {row['more_cpu_ms']:+7.1f}"
        )
    own = told["own_cpu_ms"]
    click.echo(
        f"Decibatch itself, processor: import {own['import']} ms, first client {own['client']} ms beyond its libraries "
        f"(aim: {told['aim_ms']:.0f} ms each)"
    )
