"""Who may use a media process next. Pure: the supervisor acts on the answer.

One slot is kept for short work where there are two or more, so that long files never hold up a voice note.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What is in use."""

    slots: int
    busy: int
    busy_long: int
    """Busy slots whose work is not short."""
    spool_bytes: int
    """Finished files, and the worst case of what runs."""
    max_spool_bytes: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request in line."""

    number: int
    short: bool
    bytes: int
    """The most that it can add to the spool."""


def admits(load: Load, ticket: Ticket) -> bool:
    """Whether this request could start now, if nobody stood before it."""
    return _slot_free(load, ticket) and _fits(load, ticket)


def choose(load: Load, line: Iterable[Ticket]) -> Ticket | None:
    """The next to start, first come first served.

    Long work that waits for a slot is stepped over by short work; work that waits for spool room is not
    stepped over, or small files could keep a large one out for ever.
    """
    for ticket in line:
        if not _slot_free(load, ticket):
            continue
        return ticket if _fits(load, ticket) else None
    return None


def _slot_free(load: Load, ticket: Ticket) -> bool:
    if load.busy >= load.slots:
        return False
    return ticket.short or load.busy_long < max(1, load.slots - 1)


def _fits(load: Load, ticket: Ticket) -> bool:
    # An empty spool takes anything: a worst case above the bound must not wait for ever.
    return load.spool_bytes == 0 or load.spool_bytes + ticket.bytes <= load.max_spool_bytes
