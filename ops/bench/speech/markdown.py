"""``python -m ops.bench.speech.markdown FILE...``: the tables of docs/performance.md, from the bench's JSON.

Several files are several runs, of different works or of one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = "| work | against | ours | theirs | ours / theirs | aim | WER ours | WER theirs |"
RULE = "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |"


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Rows of all runs, then what they ran on, then what the step log said."""
    lines = [HEAD, RULE, *(line(row) for run in runs for row in run["rows"]), ""]
    moments = {f"{run['machine']}; Python {run['python']}, MLX {run['mlx']}, {run['model']}" for run in runs}
    dates = sorted({run["date"][:10] for run in runs})
    lines += [f"{' and '.join(sorted(moments))}; {', '.join(dates)}.", "", *batches(runs)]
    return "\n".join(lines).rstrip() + "\n"


def line(row: dict[str, Any]) -> str:
    aim = {None: row["aim"] or "", True: f"**{row['aim']}**: reached", False: f"{row['aim']}: not reached"}
    if "unavailable" in row:
        theirs, ratio = "not measured", row["unavailable"]
    else:
        low, high = row["spread"]
        theirs, ratio = f"{row['theirs']:.2f}", f"**{row['ratio']:.2f}** ({low:.2f} to {high:.2f})"
    rates = ["" if rate is None else f"{100 * rate:.1f} %" for rate in (row["wer"], row["wer_theirs"])]
    cells = [
        row["work"],
        row["against"],
        f"{row['ours']:.2f} {row['unit']}",
        theirs,
        ratio,
        aim[row["reached"]],
    ]
    return f"| {' | '.join([*cells, *rates])} |"


def batches(runs: Sequence[dict[str, Any]]) -> list[str]:
    """One row for each work of which there are step records."""
    lines = [
        "| work | rows: encoder | rows: decoder | jobs in a decoder step | slots taken | padding encoded |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        for name, one in run["batches"].items():
            shares = [_share(one["occupancy"]), _share(one["padding_waste"])]
            mean = [_number(one["mean_rows"][kind]) for kind in ("encode", "decode")]
            lines.append(f"| {' | '.join([name, *mean, _number(one['jobs_in_a_step']), *shares])} |")
    return lines


def _share(value: float | None) -> str:
    return "not told" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "not told" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.stdout.write(table([json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:]]))
