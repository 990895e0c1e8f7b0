"""Readings of memory, and how it is given back.

*Active* is what MLX's live buffers hold, *cache* what it has freed and keeps, *peak* the high water of active.
The *footprint* is the process's as the operating system counts it: ``phys_footprint`` on macOS, where RSS is
blind to Metal's buffers and to compressed pages; RSS on Linux. A reading that fails is 0, which means unknown.
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import sys
from pathlib import Path

from engine.protocol import Sample

# --- footprint ------------------------------------------------------------------------------

RUSAGE_INFO_V4 = 4
RUSAGE_INFO_SIZE = 296
"""Bytes of ``struct rusage_info_v4``: a 16-byte UUID and 35 64-bit counters (macOS, ``sys/resource.h``)."""

_PHYS_FOOTPRINT_OFFSET = 16 + 7 * 8
"""After user_time, system_time, pkg_idle_wkups, interrupt_wkups, pageins, wired_size and resident_size."""


def parse_rusage(buffer: bytes) -> int:
    """``ri_phys_footprint`` of a ``struct rusage_info_v4``, in bytes; 0 if the buffer is too short."""
    if len(buffer) < _PHYS_FOOTPRINT_OFFSET + 8:
        return 0
    (footprint,) = struct.unpack_from("=Q", buffer, _PHYS_FOOTPRINT_OFFSET)
    return int(footprint)


def footprint() -> int:
    """Bytes that the system counts for this process; 0 if it does not say."""
    try:
        return _footprint_macos() if sys.platform == "darwin" else _resident_linux()
    except (OSError, ValueError, AttributeError, IndexError):
        return 0


def _footprint_macos() -> int:
    """Same user, no privileges (``proc_pid_rusage(3)``, libproc)."""
    libproc = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
    buffer = ctypes.create_string_buffer(RUSAGE_INFO_SIZE)
    if libproc.proc_pid_rusage(os.getpid(), RUSAGE_INFO_V4, buffer) != 0:
        return 0
    return parse_rusage(buffer.raw)


def _resident_linux() -> int:
    fields = Path("/proc/self/statm").read_bytes().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


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
    """One reading, after which the high water counts anew."""
    import mlx.core as mx

    reading = sample()
    mx.reset_peak_memory()
    return reading


def set_limits(memory_limit: int | None, cache_limit: int | None) -> None:
    """Bound MLX's memory, in bytes. The memory limit is backpressure, not an error; wired memory stays alone."""
    import mlx.core as mx

    if memory_limit is not None:
        mx.set_memory_limit(memory_limit)
    if cache_limit is not None:
        mx.set_cache_limit(cache_limit)


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
