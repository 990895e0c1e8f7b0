"""Plays a script of faults against a fleet, and notes which of them struck work that was under way."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from ops import stack
from ops.bench.faults.fleet import Place
from ops.bench.faults.observer import Held, Observer
from ops.bench.faults.plan import Fault, Kind
from ops.bench.faults.server import Server

AIM_S = 3.0
"""Seconds to wait for the one to be struck to have work in its hands; past that the fault is left out."""
TICK_S = 0.02
DEATH_PAUSE_S = 1.0
"""Seconds after which a worker that ended by itself is started again, as launchd would."""

STRIKES_SERVER = (Kind.SERVER_TERMINATED, Kind.SERVER_KILLED)
SETTLED_FIRST = (Kind.WORKER_KILLED, Kind.WORKER_STOPPED)
"""After these nothing changes any more, so that what they struck is read afterwards, exactly."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that met at least one delivery."""

    fault: Fault
    at_ms: int
    """Unix milliseconds."""
    held: tuple[Held, ...]
    """What was pending for the one it struck; for the server, everything."""


class Player:
    """One thread. What is done for a while is undone by the same thread, between the faults."""

    def __init__(
        self, places: list[Place], server: Server, observer: Observer, tell: Callable[[str], None]
    ) -> None:
        self._tell = tell
        self._places = places
        self._server = server
        self._observer = observer
        self._undo: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._pause = threading.Event()
        self.behind_s = 0.0
        """By how much the script is late: jobs come that much later too, so that there is work to the end."""
        self.struck: list[Struck] = []
        self.missed: list[Fault] = []
        """Faults for which nothing was under way in time."""

    def play(self, faults: tuple[Fault, ...], began: float) -> None:
        """All faults in order, late rather than never; then everything is made whole."""
        for fault in faults:
            self._go_on_until(began + fault.at_s + self.behind_s)
            self.behind_s = max(self.behind_s, time.monotonic() - began - fault.at_s)
            if not self._strike(fault):
                self.missed.append(fault)
        self.make_whole()

    def make_whole(self) -> None:
        """Server up, lines open, every worker alive and not stopped."""
        while self._undo:
            self._go_on_until(self._undo[0][0])
        self.tend()

    def tend(self) -> None:
        """Start again what has ended by itself."""
        for place in self._places:
            if place.note_death():
                last = stack.last_lines(place.log)
                self._tell(f"{place.name} has ended by itself with {place.deaths[-1]}: {last}")
                self._later(DEATH_PAUSE_S, place.start)
        now = time.monotonic()
        while self._undo and self._undo[0][0] <= now:
            heapq.heappop(self._undo)[2]()

    def _go_on_until(self, when: float) -> None:
        while True:
            self.tend()
            left = when - time.monotonic()
            if left <= 0:
                return
            self._pause.wait(min(left, TICK_S))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + seconds, next(self._numbers), act))

    # --- striking ---------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> bool:
        """False where nothing was under way, or where it came too late for what was."""
        until = time.monotonic() + AIM_S
        while (aimed := self._aim(fault)) is None:
            if time.monotonic() > until:
                return False
            self._go_on_until(time.monotonic() + TICK_S)
        place, held = aimed
        at_ms = int(time.time() * 1000)
        if not self._act(fault, place):
            return False
        if fault.kind in SETTLED_FIRST:
            held = self._observer.in_flight(place.name)
        if held:
            self.struck.append(Struck(fault, at_ms, held))
        return bool(held)

    def _aim(self, fault: Fault) -> tuple[Place, tuple[Held, ...]] | None:
        """Whom to strike, and what it holds; None where nobody has anything."""
        for place in (*self._places[fault.worker :], *self._places[: fault.worker]):
            if fault.kind in STRIKES_SERVER:
                held = self._observer.in_flight()
            elif place.stopped or place.dead_line or not place.alive:
                continue
            else:
                held = self._observer.in_flight(place.name)
            if held:
                return place, held
        return None

    def _act(self, fault: Fault, place: Place) -> bool:
        match fault.kind:
            case Kind.WORKER_KILLED:
                place.kill()
                self._later(fault.hold_s, place.start)
            case Kind.WORKER_STOPPED:
                place.halt()
                self._later(fault.hold_s, place.go_on)
            case Kind.ENGINE_KILLED:
                engine = place.engine()
                return engine is not None and _kill(engine)
            case Kind.MEDIA_KILLED:
                decoders = place.decoders()
                return bool(decoders) and _kill(decoders[0])
            case Kind.SERVER_TERMINATED | Kind.SERVER_KILLED:
                killed = fault.kind is Kind.SERVER_KILLED
                self._server.end(signal.SIGKILL if killed else signal.SIGTERM)
                self._later(fault.hold_s, self._server.start)
            case Kind.LINE_CUT:
                place.line.cut()
            case Kind.REPLY_LOST:
                return self._lose_reply(fault, place)
            case Kind.LINE_DEAD:
                self._let_go_dead(fault, place)
        return True

    def _lose_reply(self, fault: Fault, place: Place) -> bool:
        sprung = place.line.lose_reply(place.sha(fault.script).encode())
        until = time.monotonic() + AIM_S
        while not sprung.is_set() and time.monotonic() < until:
            self._go_on_until(time.monotonic() + TICK_S)
        place.line.disarm()
        return sprung.is_set()

    def _let_go_dead(self, fault: Fault, place: Place) -> None:
        place.line.go_dead()
        place.dead_line = True

        def revive() -> None:
            place.line.revive(close=fault.closes)
            place.dead_line = False

        self._later(fault.hold_s, revive)


def _kill(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        return True
    return False
