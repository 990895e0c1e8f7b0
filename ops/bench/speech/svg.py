"""Bars on lanes over a line of time, as an SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 1080
LEFT = 150
RIGHT = 90
TOP = 132
LANE = 30
BAR = 20
STEP_BAR = 12
LEGEND_COLUMNS = 3
FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, FAINT, PAPER = "#222831", "#6b7280", "#ffffff"

WIDE = ("queue", "media", "waiting", "engine", "settle")
"""Kinds that fill a lane's height; steps lie inside the engine's part."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Seconds from the left end of the picture."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    bars: tuple[Bar, ...]

    @property
    def end(self) -> float:
        return max(bar.end for bar in self.bars)

    @property
    def start(self) -> float:
        return min(bar.start for bar in self.bars)


def picture(lanes: Sequence[Lane], kinds: Sequence[tuple[str, str, str]], *, title: str, note: str) -> str:
    """The whole SVG.

    :param kinds: name, words of the legend, and colour of each kind of bar; those that no lane has are left out.
    """
    there = {bar.kind for lane in lanes for bar in lane.bars}
    shown = [kind for kind in kinds if kind[0] in there]
    colours = {name: colour for name, _, colour in kinds}
    last = max(lane.end for lane in lanes)
    scale = (WIDTH - LEFT - RIGHT) / last
    bottom = TOP + LANE * len(lanes)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {bottom + 62}' role='img' {FONT}>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{bottom + 62}' fill='{PAPER}'/>",
        _text(20, 30, title, size=18, weight="bold"),
        _text(20, 50, note, colour=FAINT),
        *_legend(shown),
        *_axis(last, scale, bottom),
    ]
    for number, lane in enumerate(lanes):
        parts += _lane(lane, TOP + LANE * number, scale, colours)
    parts.append(
        _text(
            WIDTH - RIGHT,
            bottom + 46,
            "seconds since the first job was submitted",
            colour=FAINT,
            anchor="end",
        )
    )
    return "\n".join([*parts, "</svg>", ""])


def _legend(kinds: Sequence[tuple[str, str, str]]) -> list[str]:
    parts = []
    column = (WIDTH - 40) / LEGEND_COLUMNS
    for number, (_, words, colour) in enumerate(kinds):
        x = 20 + column * (number % LEGEND_COLUMNS)
        y = 64 + 18 * (number // LEGEND_COLUMNS)
        parts.append(f"<rect x='{x:.0f}' y='{y}' width='14' height='12' fill='{colour}'/>")
        parts.append(_text(x + 20, y + 10, words))
    return parts


def _axis(last: float, scale: float, bottom: int) -> list[str]:
    step = next(size for size in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if last / size <= 12)
    parts = []
    for number in range(int(last / step) + 1):
        x = LEFT + number * step * scale
        parts.append(f"<line x1='{x:.1f}' y1='{TOP - 6}' x2='{x:.1f}' y2='{bottom + 6}' stroke='#e5e7eb'/>")
        parts.append(_text(x, bottom + 22, f"{number * step:g}", colour=FAINT, anchor="middle"))
    return parts


def _lane(lane: Lane, y: int, scale: float, colours: dict[str, str]) -> list[str]:
    parts = [_text(LEFT - 10, y + 17, lane.label, anchor="end")]
    # Steps are drawn over the part that they belong to.
    for bar in sorted(lane.bars, key=lambda one: one.kind not in WIDE):
        height = BAR if bar.kind in WIDE else STEP_BAR
        top = y + 3 + (BAR - height) / 2
        width = max(0.6, (bar.end - bar.start) * scale)
        parts.append(
            f"<rect x='{LEFT + bar.start * scale:.1f}' y='{top:g}' width='{width:.1f}' height='{height}'"
            f" fill='{colours[bar.kind]}'><title>{bar.kind} {bar.end - bar.start:.3f} s</title></rect>"
        )
    parts.append(_text(LEFT + lane.end * scale + 6, y + 17, f"{lane.end - lane.start:.2f} s", colour=FAINT))
    return parts


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    colour: str = INK,
    anchor: str = "start",
    weight: str = "",
) -> str:
    bold = f" font-weight='{weight}'" if weight else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}' text-anchor='{anchor}'{bold}>"
        f"{escape(words)}</text>"
    )
