"""How much memory the engine may use: pure arithmetic from the device and the settings. No MLX here."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024

RESERVE_SHARE = 0.25
"""Of the device's memory, what is left to the system and to everybody else where no budget is set."""
CACHE_SHARE = 0.05
"""Of the budget, what MLX may keep in freed buffers: a full cache must never be what crosses a line."""
MIN_CACHE_BYTES = 16 * MIB
MAX_CACHE_BYTES = 256 * MIB
"""MLX's own bound is its memory limit: a server with shapes of many kinds kept 38 GB of freed buffers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds in one engine process, bytes. Shown in health."""

    total: int
    """What the device may use at all: Metal's recommended working set, the machine's memory, or its container's."""
    budget: int
    """What the engine may use, weights included: 100 % of the levels."""
    memory: int
    """``mx.set_memory_limit``; 0 leaves MLX's own. Backpressure inside MLX, not an error."""
    cache: int
    """``mx.set_cache_limit``."""
    wired: int
    """``mx.set_wired_limit``; 0 leaves wiring alone, after reports of kernel panics around it."""


def resolve(
    total: int,
    *,
    budget: int | None = None,
    memory: int | None = None,
    cache: int | None = None,
    wired: int = 0,
    reserve: int | None = None,
) -> Limits:
    """Limits of an engine on a device with *total* bytes.

    What is set is taken; of the rest, the budget is the device's memory less a reserve, and the cache a
    twentieth of the budget.

    :param total: bytes that the device may use; 0 where that is unknown.
    :param reserve: bytes left to others where no budget is set; None for a quarter of the device.
    """
    kept = int(total * RESERVE_SHARE) if reserve is None else reserve
    resolved = budget if budget is not None else max(0, total - kept)
    derived = min(MAX_CACHE_BYTES, max(MIN_CACHE_BYTES, int(resolved * CACHE_SHARE)))
    return Limits(
        total=total,
        budget=resolved,
        memory=resolved if memory is None else memory,
        cache=derived if cache is None else cache,
        wired=wired,
    )
