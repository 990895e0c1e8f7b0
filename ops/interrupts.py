"""An interrupt that cannot get lost.

CPython drops whatever is raised inside a finalizer, a ^C that lands there included: the program would go on
as if nothing had been asked of it. So the handler also takes a note, and whoever waits looks at it.
"""

from __future__ import annotations

import signal
from types import FrameType

POLL_S = 0.5
"""How often one who waits should call :meth:`Interrupts.check`."""


class Interrupts:
    """SIGINT and SIGTERM raise KeyboardInterrupt, at once where they can. Made in the main thread."""

    def __init__(self) -> None:
        self._noted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def check(self) -> None:
        """Raises KeyboardInterrupt where a signal has come, however long ago."""
        if self._noted:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
        raise KeyboardInterrupt
