"""``decibatch doctor``."""

from __future__ import annotations

import dataclasses
import json

import click

from ops.commands.common import load_settings
from ops.exits import Exit

MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One object: `sound`, and `findings`.")
def doctor_command(as_json: bool) -> int:
    """Check Python, MLX, BLAS, models, limits, disk, Redis, clock, workers and service; say what mends what is wrong.

    Exits with 0 where nothing keeps a worker from working; warnings do not count. A model that was never used is
    converted into the cache on the way.
    """
    from ops.commands.worker import NEEDED
    from ops.doctor.run import examine

    findings = []
    screen = None
    if not as_json:
        from rich.console import Console

        screen = Console(highlight=False, soft_wrap=True)
    for finding in examine(load_settings(), NEEDED):
        findings.append(finding)
        if screen is not None:
            from rich.markup import escape

            screen.print(f"{MARKS[finding.verdict]} {finding.check:<11} {escape(finding.said)}")
            if finding.mend:
                screen.print(f"     {'':<11} [dim]mend:[/] {escape(finding.mend)}")
    sound = all(finding.verdict != "fail" for finding in findings)
    if as_json:
        click.echo(json.dumps({"sound": sound, "findings": [dataclasses.asdict(one) for one in findings]}))
    return Exit.OK if sound else Exit.UNHEALTHY
