"""The memory of the whole machine, which others use too: read seldom, and never taken for the engine's own.

On Linux from psutil and the kernel's pressure stall information; on macOS from ``vm_stat`` and ``sysctl``, whose
output is read by label (the labels' widths and the lines' number differ between releases). The macOS half was written
from recorded output and has not been run on a Mac. What cannot be read is 0, which means unknown.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

NORMAL, WARN, CRITICAL = 1, 2, 4
"""Pressure levels, numbered as macOS does (``kern.memorystatus_vm_pressure_level``); 0 is unknown."""

STALL_WARN_PCT = 10.0
"""Linux: share of the last ten seconds in which some task waited for memory, from which it counts as a warning."""
STALL_CRITICAL_PCT = 10.0
"""The same for all tasks at once."""

TOOL_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """One reading of the machine, bytes and counts since its start. 0 means unknown."""

    available: int = 0
    """What could be had without swapping or compressing."""
    swap_used: int = 0
    page_ins: int = 0
    """Bytes read back from disk or swap since the machine started."""
    page_outs: int = 0
    pressure: int = 0


def read() -> SystemMemory:
    """One reading. Costs under a millisecond on Linux, and two short processes on macOS."""
    return _read_macos() if sys.platform == "darwin" else _read_linux()


# --- Linux --------------------------------------------------------------------------------------


def _read_linux() -> SystemMemory:
    try:
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    except (OSError, RuntimeError, ValueError):
        return SystemMemory()
    return SystemMemory(
        available=memory.available,
        swap_used=swap.used,
        page_ins=swap.sin,
        page_outs=swap.sout,
        pressure=_stalls(Path("/proc/pressure/memory")),
    )


def _stalls(path: Path) -> int:
    try:
        return parse_stalls(path.read_text())
    except OSError:
        return 0


def parse_stalls(text: str) -> int:
    """The pressure level behind ``/proc/pressure/memory`` (Linux, ``Documentation/accounting/psi.rst``)."""
    shares = {name: float(value) for name, value in re.findall(r"^(some|full) avg10=([\d.]+)", text, re.M)}
    if not shares:
        return 0
    if shares.get("full", 0.0) >= STALL_CRITICAL_PCT:
        return CRITICAL
    return WARN if shares.get("some", 0.0) >= STALL_WARN_PCT else NORMAL


# --- macOS --------------------------------------------------------------------------------------


def _read_macos() -> SystemMemory:
    pages = parse_vm_stat(_output("/usr/bin/vm_stat"))
    names = ("kern.memorystatus_vm_pressure_level", "vm.swapusage")
    pressure, swap_used = parse_sysctl(_output("/usr/sbin/sysctl", *names))
    return replace(pages, pressure=pressure, swap_used=swap_used)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def parse_vm_stat(text: str) -> SystemMemory:
    """Available memory and paging from the output of ``vm_stat``.

    Available counts free, speculative and purgeable pages: what macOS calls inactive is in part the anonymous
    memory of sleeping programs, which can only be had by compressing it.
    """
    size = re.search(r"page size of (\d+) bytes", text)
    if size is None:
        return SystemMemory()
    page = int(size[1])
    counts = {
        label: int(value) for label, value in re.findall(r'^"?([^":\n]+)"?:\s+(\d+)\.?\s*$', text, re.M)
    }

    def bytes_of(*labels: str) -> int:
        return page * sum(counts.get(label, 0) for label in labels)

    return SystemMemory(
        available=bytes_of("Pages free", "Pages speculative", "Pages purgeable"),
        page_ins=bytes_of("Pageins", "Swapins"),
        page_outs=bytes_of("Pageouts", "Swapouts"),
    )


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_sysctl(text: str) -> tuple[int, int]:
    """(pressure level, bytes of swap used) from ``sysctl kern.memorystatus_vm_pressure_level vm.swapusage``."""
    level = re.search(r"^kern\.memorystatus_vm_pressure_level: (\d+)$", text, re.M)
    swap = re.search(r"^vm\.swapusage:.*\bused = ([\d.]+)([KMG])", text, re.M)
    return (
        int(level[1]) if level else 0,
        int(float(swap[1]) * _UNITS[swap[2]]) if swap else 0,
    )
