"""The picture of a run: memory against the three lines, levels as bands, rows in the engine, what was done and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.bench.memory.record import Point
from ops.exits import Trouble
from ops.settings import MIB

if TYPE_CHECKING:
    from ops.bench.memory.run import Run

SHOWN = ("100%", "50%", "40%")
TITLES = {
    "100%": "budget = what the load wants",
    "50%": "half of that",
    "40%": "40 % of that",
}
LINES = ((0.8, "80 %: take nothing new"), (0.9, "90 %: smaller batches, fewer bits"), (1.0, "100 %: pause"))
BANDS = {"queue": "#fff3c4", "shrink": "#ffd8a8", "pause": "#ffb3b3"}
INK, PEAK, SCALE = "#1b3a5c", "#7aa5d2", "#9aa3ad"


def pyplot() -> Any:
    """matplotlib, drawing to files. Raises Trouble where it is missing."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError as exc:
        raise Trouble("The picture needs matplotlib: pip install 'decibatch[dev]'") from exc
    return plt


def draw(runs: Mapping[str, Run], path: Path) -> None:
    """Write a PNG. Raises Trouble where matplotlib is missing."""
    plt = pyplot()
    shown = [runs[name] for name in SHOWN if name in runs] or list(runs.values())[:1]
    figure, axes = plt.subplots(
        2,
        len(shown),
        figsize=(5.2 * len(shown), 6.4),
        sharex="col",
        squeeze=False,
        gridspec_kw={"height_ratios": [3, 1], "hspace": 0.08, "wspace": 0.18},
    )
    for column, run in enumerate(shown):
        _column(axes[0][column], axes[1][column], run)
    axes[0][0].set_ylabel("memory of the engine, MiB")
    axes[1][0].set_ylabel("chunks in\nthe engine")
    _legend(figure)
    figure.suptitle(
        "The same recordings through the same worker, at smaller and smaller memory budgets",
        fontsize=13,
        x=0.5,
        y=0.985,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _column(memory: Any, rows: Any, run: Run) -> None:
    points = run.told.points
    start = points[0].t
    at = [point.t - start for point in points]
    budget = run.told.budget / MIB
    for left, right, level in bands(points):
        for axis in (memory, rows):
            axis.axvspan(left - start, right - start, color=BANDS[level], linewidth=0)
    memory.vlines(
        at,
        [point.danger / MIB for point in points],
        [point.peak / MIB for point in points],
        color=PEAK,
        linewidth=1.2,
    )
    memory.plot(at, [point.danger / MIB for point in points], color=INK, linewidth=1.3)
    for share, name in LINES:
        memory.axhline(
            share * budget, color="#b03030" if share == 1 else "#c98a2b", linestyle="--", linewidth=1
        )
        memory.annotate(
            name,
            (0, share * budget),
            xytext=(4, 2),
            textcoords="offset points",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )
    _mark_moves(memory, run, start, budget)
    memory.set_ylim(0, max(1.12 * budget, 1.05 * max(point.peak for point in points) / MIB))
    memory.set_title(
        f"{TITLES.get(run.name, run.name)}: {run.budget_mb} MiB\n"
        f"{run.throughput:.2f} clips/s, {run.refused} refused, {run.lost} lost; weights at {run.bits} bits",
        fontsize=10,
    )
    rows.step(at, [point.rows for point in points], where="post", color=INK, linewidth=1)
    rows.fill_between(at, [point.rows for point in points], step="post", color=PEAK, alpha=0.5)
    rows.set_ylim(0, 34)
    rows.set_yticks([0, 8, 16, 32])
    rows.set_xlabel("seconds")
    for axis in (memory, rows):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(0, at[-1])
        axis.tick_params(colors="#444444")


def _mark_moves(axis: Any, run: Run, start: float, budget: float) -> None:
    """Changes of precision, with what each freed."""
    for line in run.told.of("requantized"):
        when = line["t"] - start
        axis.axvline(when, color="#2f7d4f", linewidth=1.2)
        freed = line["freed"] / MIB
        word = "freed" if freed >= 0 else "took"
        axis.annotate(
            f"weights {line['bits_before']} → {line['bits']} bits\n{word} {abs(freed):.0f} MiB",
            (when, 0.04 * budget),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            color="#2f7d4f",
        )


def bands(points: Sequence[Point]) -> list[tuple[float, float, str]]:
    """(from, to, level) of each stretch that is not open."""
    found: list[tuple[float, float, str]] = []
    for point, after in zip(points, [*points[1:], points[-1]], strict=True):
        if point.level == "open":
            continue
        if found and found[-1][2] == point.level and found[-1][1] == point.t:
            found[-1] = (found[-1][0], after.t, point.level)
        else:
            found.append((point.t, after.t, point.level))
    return found


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=INK, label="held (the more of MLX's and the process's), 20 readings a second"),
        Line2D([], [], color=PEAK, linewidth=3, label="high water within a step"),
        *(Patch(color=color, label=f"level {level}") for level, color in BANDS.items()),
    ]
    figure.legend(
        handles=handles, loc="lower center", ncols=5, fontsize=9, frameon=False, bbox_to_anchor=(0.5, -0.03)
    )
