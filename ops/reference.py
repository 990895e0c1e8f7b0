"""Writes the reference of the settings from the settings themselves: ``python -m ops.reference > docs/settings.md``."""

from __future__ import annotations

import json
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ops.settings import Settings

HEAD = """\
# Settings

Each setting is read from the environment first (`DECIBATCH_<NAME>` in capitals), then from a TOML file (`<name>`),
then from its default. The file is the one that `DECIBATCH_CONFIG` names (an empty value means no file), else
`~/.config/decibatch/config.toml` (under `$XDG_CONFIG_HOME` where that is set) or, on macOS,
`~/Library/Application Support/decibatch/config.toml`. A key in the file that is no setting is an error.

`decibatch config` shows what is in effect and where each value comes from, passwords masked. This page is written
by `python -m ops.reference > docs/settings.md`.

| setting | default | what it is |
| --- | --- | --- |
"""

TAIL = """
A file that adds a model and serves both:

```toml
redis_url = "redis://queue.example:6379/0"
model = "tiny.en"
serve = ["tiny.en", "small"]
memory_budget_mb = 8192

[models]
small = "path:/srv/models/whisper-small-mlx"
```
"""


def page() -> str:
    """The whole page, as Markdown."""
    rows = (
        f"| `{name}` | {_default(field)} | {(field.description or '').replace('|', '&#124;')} |\n"
        for name, field in Settings.model_fields.items()
    )
    return HEAD + "".join(rows) + TAIL


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    assert value is not PydanticUndefined
    if value is None or value == ():
        return "unset"
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, dict):
        return ", ".join(f"`{alias}`" for alias in value)
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    print(page(), end="")
