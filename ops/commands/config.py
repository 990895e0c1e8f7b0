"""``decibatch config``."""

from __future__ import annotations

import json

import click

from ops.commands.common import load_settings
from ops.settings import Settings, mask_url, source_of


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="One object: setting to `value` and `from`.")
def config_command(as_json: bool) -> None:
    """Show every setting in effect, secrets masked, and where it comes from."""
    rows = {
        name: (shown(settings, name), source_of(name)) for settings in [load_settings()] for name in names()
    }
    if as_json:
        click.echo(
            json.dumps({name: {"value": value, "from": source} for name, (value, source) in rows.items()})
        )
        return
    width = max(map(len, rows))
    for name, (value, source) in rows.items():
        click.echo(f"{name:<{width}}  {_brief(value)}" + ("" if source == "default" else f"   # {source}"))


def names() -> list[str]:
    return list(Settings.model_fields)


def shown(settings: Settings, name: str) -> object:
    """The value as JSON has it, without its secrets."""
    if name == "redis_url":
        return mask_url(settings.redis_url.get_secret_value())
    return settings.model_dump(mode="json", include={name})[name]


def _brief(value: object) -> str:
    if value is None or value == []:
        return "(unset)"
    return value if isinstance(value, str) else json.dumps(value)
