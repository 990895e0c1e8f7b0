"""What importing the client costs a web application, beyond the interpreter itself."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

STEPS: tuple[tuple[str, str], ...] = (
    ("interpreter", "pass"),
    ("import", "from decibatch import AsyncClient, Client"),
    ("libraries", "import redis; from pydantic import BaseModel, Field; type('M', (BaseModel,), {})"),
    ("client", "from decibatch import Client; Client().close()"),
    ("submission", "from decibatch import Client, Submission; Submission('a.wav'); Client().close()"),
)
"""Name of a step and the program that is timed. ``client`` and those below it include ``libraries``, which stands there
by itself because an application that uses Redis and pydantic has loaded it anyway: pydantic's first model looks through
all that is installed for plugins."""
AIM_MS = 150.0
"""For the import, beyond the interpreter; for the first client, beyond the libraries."""

Took = tuple[float, float]
"""Seconds of a Python process: from its start to its end, and on the processor."""


def timed(program: str) -> Took:
    """Run a program in a Python process of its own."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(rounds: int, measure: Callable[[str], Took] = timed) -> dict[str, Any]:
    """Each step in turn, round after round; medians in milliseconds, and their distance from the interpreter's.

    On a machine that does other things as well, the time on the processor says more.
    """
    seconds: dict[str, list[Took]] = {name: [] for name, _ in STEPS}
    for number in range(rounds + 1):
        for name, program in STEPS:
            took = measure(program)
            # The first round reads the files from the disk, and may have to compile them.
            if number:
                seconds[name].append(took)
    rows: list[dict[str, Any]] = []
    for name, _ in STEPS:
        wall, cpu = (1000 * statistics.median(values) for values in zip(*seconds[name], strict=True))
        first = rows[0] if rows else {"ms": wall, "cpu_ms": cpu}
        more = {"more_ms": round(wall - first["ms"], 1), "more_cpu_ms": round(cpu - first["cpu_ms"], 1)}
        rows.append({"step": name, "ms": round(wall, 1), "cpu_ms": round(cpu, 1), **more})
    of = {row["step"]: row["more_cpu_ms"] for row in rows}
    own = {"import": of["import"], "client": round(of["client"] - of["libraries"], 1)}
    return {"rows": rows, "rounds": rounds, "own_cpu_ms": own, "aim_ms": AIM_MS}
