"""``decibatch redis``: an embedded server in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ops.embedded import EmbeddedServer, port_is_taken
from ops.exits import Exit, Trouble
from ops.interrupts import Interrupts

POLL_S = 0.5


@click.command("redis")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=6379, show_default=True, help="0 takes a free one."
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data lies. [default: a folder of the user's]",
)
def redis_command(port: int, folder: Path | None) -> int:
    """Run a Redis-compatible server on loopback until it is interrupted.

    It keeps an append-only file, written out every second: jobs survive a restart.
    """
    if port and port_is_taken(port):
        raise Trouble(f"Port {port} is taken; choose another with --port.")
    interrupts = Interrupts()
    with EmbeddedServer(folder or default_folder(), port=port, durable=True, password="") as server:
        click.echo(f"{server.binary.name} listens; use DECIBATCH_REDIS_URL={server.url}")
        try:
            while (status := server.wait(POLL_S)) is None:
                interrupts.check()
        except KeyboardInterrupt:
            return Exit.OK
    raise Trouble(f"The server ended by itself, with status {status}.")


def default_folder() -> Path:
    """For data that is neither a setting nor a cache."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "decibatch" / "redis"
    return Path.home() / ".local" / "share" / "decibatch" / "redis"
