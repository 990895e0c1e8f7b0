"""Readings of memory, and how it is given back.

*Active* is what MLX's live buffers hold, *cache* what it has freed and keeps, *peak* the high water of active.
The *footprint* is the process's as the operating system counts it: ``phys_footprint`` on macOS, where RSS is
blind to Metal's buffers and to compressed pages; RSS on Linux. A reading that fails is 0, which means unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import struct
import sys
from dataclasses import replace
from pathlib import Path

from engine.limits import Limits
from engine.protocol import Sample

# --- footprint ------------------------------------------------------------------------------

RUSAGE_INFO_V4 = 4
RUSAGE_INFO_SIZE = 296
"""Bytes of ``struct rusage_info_v4``: a 16-byte UUID and 35 64-bit counters (macOS, ``sys/resource.h``)."""

_PHYS_FOOTPRINT = 16 + 7 * 8
"""Offset of ri_phys_footprint: behind the UUID, user_time, system_time, pkg_idle_wkups, interrupt_wkups, pageins,
wired_size and resident_size."""
_INTERVAL_MAX_FOOTPRINT = 16 + 33 * 8
"""Offset of ri_interval_max_phys_footprint: the last counter but one."""


def parse_rusage(buffer: bytes) -> tuple[int, int]:
    """Footprint and its high water since the last reset, of a ``struct rusage_info_v4``; zeros if it is too short."""
    if len(buffer) < RUSAGE_INFO_SIZE:
        return 0, 0
    now, peak = (struct.unpack_from("=Q", buffer, at)[0] for at in (_PHYS_FOOTPRINT, _INTERVAL_MAX_FOOTPRINT))
    return int(now), int(peak)


def footprint() -> int:
    """Bytes that the system counts for this process; 0 if it does not say."""
    try:
        return _rusage_macos()[0] if sys.platform == "darwin" else _resident_linux()
    except (OSError, ValueError, AttributeError, IndexError):
        return 0


def peak_footprint() -> int:
    """High water of :func:`footprint` since :func:`reset_peak_footprint`; 0 if the system does not say."""
    try:
        return _rusage_macos()[1] if sys.platform == "darwin" else _resident_peak_linux()
    except (OSError, ValueError, AttributeError, IndexError):
        return 0


def reset_peak_footprint() -> None:
    """Let the high water count anew. Where that is refused it stays what it was: too high, never too low."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "darwin":
            ctypes.CDLL("/usr/lib/libproc.dylib").proc_reset_footprint_interval(os.getpid())
        else:
            Path("/proc/self/clear_refs").write_bytes(b"5")  # proc(5): reset the peak resident set size


def proportional() -> int:
    """Linux: the resident set with shared pages counted by their share (PSS); 0 elsewhere. Takes 12 ms at 1 GB."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration, IndexError):
        return 0


def _rusage_macos() -> tuple[int, int]:
    """Same user, no privileges (``proc_pid_rusage(3)``, libproc)."""
    libproc = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
    buffer = ctypes.create_string_buffer(RUSAGE_INFO_SIZE)
    if libproc.proc_pid_rusage(os.getpid(), RUSAGE_INFO_V4, buffer) != 0:
        return 0, 0
    return parse_rusage(buffer.raw)


def _resident_linux() -> int:
    fields = Path("/proc/self/statm").read_bytes().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _resident_peak_linux() -> int:
    for line in Path("/proc/self/status").read_bytes().splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


# --- MLX --------------------------------------------------------------------------------------


def sample() -> Sample:
    """One reading. Safe from any thread: MLX's counters stand behind its allocator's lock."""
    import mlx.core as mx

    return Sample(
        active=mx.get_active_memory(),
        cache=mx.get_cache_memory(),
        peak=mx.get_peak_memory(),
        footprint=footprint(),
    )


def sample_after_step() -> Sample:
    """One reading with the high waters, which then count anew."""
    import mlx.core as mx

    reading = replace(sample(), peak_footprint=peak_footprint())
    mx.reset_peak_memory()
    reset_peak_footprint()
    return reading


def set_limits(limits: Limits) -> None:
    """Bound MLX's memory. The memory limit is backpressure, not an error.

    :raises ValueError: more wired memory than the system recommends (macOS 15 and later).
    """
    import mlx.core as mx

    if limits.memory:
        mx.set_memory_limit(limits.memory)
    mx.set_cache_limit(limits.cache)
    if limits.wired and mx.metal.is_available():
        mx.set_wired_limit(limits.wired)


MMAP_THRESHOLD = 4 * 1024 * 1024


def tame_malloc() -> None:
    """Linux, glibc: let a large block go back to the system when it is freed.

    By default the threshold from which blocks are mapped, and unmapped, one by one grows with use up to 32 MB;
    blocks below it stay with the process, so that its footprint tells of the past. Call it before large
    allocations (``mallopt(3)``: setting one of the two ends the growth of both).
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, MMAP_THRESHOLD)  # M_MMAP_THRESHOLD
        mallopt(-1, MMAP_THRESHOLD)  # M_TRIM_THRESHOLD


def clear() -> None:
    """Give what is freed back to the system: MLX's cache, Python's garbage, and malloc's free pages."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        if trim is not None:
            trim(0)


# --- the machine ------------------------------------------------------------------------------

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where cgroup v2 and v1 keep the limit of the container that this process runs in."""


def device_total() -> int:
    """Bytes that the device may use: Metal's recommended working set, or the machine's memory, or its container's."""
    import mlx.core as mx

    if mx.metal.is_available():
        return int(mx.device_info().get("max_recommended_working_set_size", 0))
    return system_total()


def system_total(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = CGROUP_LIMITS) -> int:
    """The least of the machine's memory and of the limits set for this process, in bytes; 0 if unknown."""
    known = [value for value in (_memory_installed(meminfo), *(_limit(path) for path in limits)) if value > 0]
    return min(known, default=0)


def _memory_installed(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    except (OSError, ValueError, StopIteration, IndexError):
        return 0


def _limit(path: Path) -> int:
    """A cgroup's limit; 0 where there is none (v2 says "max", v1 a number near 2**63)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() and int(text) < 1 << 60 else 0
