"""``decibatch demo``."""

from __future__ import annotations

import click

from ops import demo
from ops.settings import load


@click.command("demo")
def demo_command() -> int:
    """Start a server and a worker, transcribe real recordings side by side, and stop everything.

    It touches neither your queue nor your settings, DECIBATCH_MODEL aside.
    """
    from rich.console import Console

    return demo.run(Console(highlight=False), load().model)
