"""What several commands need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ops import settings as settings_module
from ops.settings import MIB, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from queueing.client import Client


def console() -> Console:
    """For people: on standard error, so that standard output holds results alone."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def open_client(settings: Settings) -> Client:
    """A client of the server and queue in the settings. Connects at its first command."""
    from queueing.client import Client
    from queueing.protocol import Admission

    return Client(
        settings.redis_url.get_secret_value(),
        queue=settings.queue,
        model=settings.model,
        admission=Admission(settings.max_waiting, settings.max_inline_bytes),
        max_inline_bytes=settings.max_inline_mb_per_job * MIB,
    )


def load_settings() -> Settings:
    """Raises SettingsInvalid. Variables that look like settings and are none are told on standard error."""
    loaded = settings_module.load()
    for sentence in settings_module.misspelt(os.environ):
        click.echo(f"decibatch: {sentence}", err=True)
    return loaded
