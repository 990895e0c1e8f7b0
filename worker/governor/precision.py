"""At how many bits each model runs: pure decisions over the ladder that the engine reports.

Down one rung where pressure lasts though batches have shrunk, and at load where the weights alone leave no room to
work; up again, one rung at a time, after calm that leaves room for the larger weights. What is moved back too soon
and has to move down again waits twice as long for its next chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.protocol import Rung

MAX_PATIENCE = 16
"""Times the wait for a move up that repeated moves down can make of it."""


@dataclass(frozen=True, slots=True)
class ModelPrecision:
    """One loaded model."""

    bits: int
    rungs: tuple[Rung, ...]
    """Highest first; only those that the settings allow, and the one it came with."""
    changed_at: float
    """Monotonic seconds of the last change, or of the load."""
    raised_at: float = -math.inf
    """Of the last move up."""
    patience: int = 1
    """Factor on the wait for a move up."""

    def rung(self, bits: int) -> Rung:
        return next(rung for rung in self.rungs if rung.bits == bits)

    def neighbour(self, step: int) -> Rung | None:
        """One rung down (1) or up (-1)."""
        place = [rung.bits for rung in self.rungs].index(self.bits) + step
        return self.rungs[place] if 0 <= place < len(self.rungs) else None


@dataclass(frozen=True, slots=True)
class Change:
    """A model is to run at other bits."""

    model: str
    bits: int
    reason: str
    in_place: bool = True
    """Or by a restart of the engine, which needs no room for two forms of a weight."""


def allowed(rungs: tuple[Rung, ...], bits: int, least: int) -> tuple[Rung, ...]:
    """The rungs at or above the settings' least bits, and the present one."""
    return tuple(rung for rung in rungs if rung.bits >= least or rung.bits == bits)


def loaded(rungs: tuple[Rung, ...], bits: int, least: int, now: float) -> ModelPrecision:
    """A model that has just been loaded."""
    return ModelPrecision(bits, allowed(rungs, bits, least), now)


def moved(model: ModelPrecision, bits: int, now: float, restore_after_s: float) -> ModelPrecision:
    """It runs at other bits now. Down soon after it went up: it is to wait longer for the next time."""
    if bits > model.bits:
        return replace(model, bits=bits, changed_at=now, raised_at=now)
    soon = now - model.raised_at < 4 * restore_after_s * model.patience
    patience = min(MAX_PATIENCE, 2 * model.patience) if soon else 1
    return replace(model, bits=bits, changed_at=now, patience=patience)


def _transient(model: ModelPrecision, to: Rung) -> int:
    dense = model.rungs[0].bits
    return to.from_dense_bytes if model.bits == dense and to.bits < dense else to.from_disk_bytes


def down(models: Mapping[str, ModelPrecision], held: int, ceiling: int, reason: str) -> Change | None:
    """The move that frees the most; None where every model stands on its lowest rung.

    :param held: bytes at rest.
    :param ceiling: bytes that must not be crossed on the way, or it is done by a restart.
    """
    moves = [
        (model.rung(model.bits).weights_bytes - lower.weights_bytes, alias, lower)
        for alias, model in models.items()
        if (lower := model.neighbour(1)) is not None
    ]
    if not moves:
        return None
    _, alias, lower = max(moves, key=lambda move: (move[0], move[1]))
    fits = held + _transient(models[alias], lower) <= ceiling
    return Change(alias, lower.bits, reason, in_place=fits)


def up(
    models: Mapping[str, ModelPrecision],
    held: int,
    ceiling: int,
    *,
    calm_s: float,
    restore_after_s: float,
    now: float,
    wanted: bool = False,
) -> Change | None:
    """A move back, of the model that has waited longest; None where it is too early or there is no room.

    :param held: most bytes of late, work included.
    :param ceiling: bytes under which all must stay, larger weights and the way there included.
    :param calm_s: seconds without pressure.
    :param wanted: a job waits for more bits, so calm need not last.
    """
    for alias, model in sorted(models.items(), key=lambda item: item[1].changed_at):
        higher = model.neighbour(-1)
        if higher is None:
            continue
        wait = restore_after_s * model.patience
        early = calm_s < wait or now - model.changed_at < wait
        if early and not wanted:
            continue
        grown = held + higher.weights_bytes - model.rung(model.bits).weights_bytes
        if max(grown, held + _transient(model, higher)) <= ceiling:
            return Change(alias, higher.bits, "calm, and room for more bits")
    return None
