"""The wire as JSON Schema, made from the models: ``python -m queueing.schemas`` writes queueing/schema/v<version>/.

A folder belongs to one wire version and never changes once a release has it; a new version is a new folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from queueing.job import WIRE_VERSION, ErrorInfo, Job, Note, Result
from queueing.webhook import Notice

FOLDER = Path(__file__).parent / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

WRITTEN: dict[str, tuple[Any, str]] = {
    "job": (Job, "What a client writes: the payload of the submit script."),
}
"""What is written by others and read here: exact, unknown fields are refused."""
READ: dict[str, tuple[Any, str]] = {
    "result": (Result, "Field `result` of a job that is done."),
    "error": (ErrorInfo, "Field `error` of a job that ended without a result."),
    "note": (Note, "A line of field `notes`: how one attempt failed."),
    "webhook": (Notice, "Body of a webhook."),
}
"""What is written here and read by others, who pass over fields that they do not know."""


def schemas() -> dict[str, dict[str, Any]]:
    """File name without ending, and the schema."""
    made = {}
    for mode, several in (("validation", WRITTEN), ("serialization", READ)):
        for name, (model, description) in several.items():
            schema = TypeAdapter(model).json_schema(mode=mode)  # type: ignore[arg-type]
            made[name] = {
                "$schema": DIALECT,
                "$id": f"urn:decibatch:wire:{WIRE_VERSION}:{name}",
                **schema,
                "title": name,
                "description": description,
            }
    return made


def rendered(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Write the schemas of this version."""
    target = folder / f"v{WIRE_VERSION}"
    target.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (target / f"{name}.json").write_text(rendered(schema), "utf-8")


if __name__ == "__main__":
    write()
