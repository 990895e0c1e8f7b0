"""``decibatch bench search``."""

from __future__ import annotations

import json

import click

from ops.commands.common import console, load_settings


@click.command("search")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--beam", type=click.IntRange(2, 16), default=5, show_default=True, help="Lines of the beam.")
@click.option("--words/--no-words", default=True, help="Compare the times of words with mlx-audio's too.")
@click.option("--json", "as_json", is_flag=True, help="One object with `rows`.")
def search_command(*, rounds: int, beam: int, words: bool, as_json: bool) -> None:
    """Beam search against the greedy one: cost, word errors, likelihood; and the times of words."""
    from ops.bench import search

    screen = console()
    told = search.run(
        load_settings(),
        rounds=rounds,
        beam=beam,
        words=words,
        tell=lambda line: screen.print(f"· {line}", markup=False),
    )
    if as_json:
        click.echo(json.dumps(told))
        return
    row = told["rows"][0]
    click.echo(
        f"{row['work']}: {row['ours']} (WER {row['wer']:.1%}); greedy: {row['theirs']} "
        f"(WER {row['wer_theirs']:.1%}); the beam's cost is {1 / row['ratio']:.2f} times"
    )
    click.echo(", ".join(f"{name} {value}" for name, value in told.items() if name != "rows"))
