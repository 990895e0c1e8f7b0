"""Loads an OpenBLAS in front of MLX on Linux, where MLX's own wheel links a reference BLAS.

Symbols resolve in load order, so whatever is loaded with ``RTLD_GLOBAL`` before :mod:`mlx` serves
MLX's ``cblas_sgemm``; loaded afterwards it has no effect at all. On macOS MLX uses Accelerate, and
nothing is done.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import struct
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


class BlasTooLate(RuntimeError):
    """MLX is already imported: its symbols are bound."""


def available_cores() -> int:
    """Cores that this process may run on (the affinity mask, where the system has one)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


class Blas:
    """A loaded OpenBLAS.

    :param path: where it was found.
    """

    def __init__(self, path: Path, library: ctypes.CDLL) -> None:
        self.path = path
        self._library = library

    def set_threads(self, count: int) -> None:
        """Threads of one call to it from now on (OpenBLAS manual, ``openblas_set_num_threads``)."""
        self._library.openblas_set_num_threads(ctypes.c_int(count))


def limit_numpy(threads: int = 1) -> bool:
    """Bound the threads of NumPy's own OpenBLAS, which its Linux wheel carries under prefixed names.

    The engine calls NumPy from one thread for each core; were each call to start threads of its own, they would
    wait for each other many times longer than they work. Returns whether there was such a library.
    """
    for site in _site_folders():
        for path in sorted((site / "numpy.libs").glob("libscipy_openblas*.so*")):
            library = ctypes.CDLL(str(path))
            for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
                if hasattr(library, name):
                    getattr(library, name)(ctypes.c_int(threads))
                    return True
    return False


def load(threads: int | None = None) -> Blas | None:
    """Load OpenBLAS into this process, on Linux; elsewhere, or where none is found, return None.

    :param threads: threads of one call; None takes every core available.
    :raises BlasTooLate: MLX is already imported.
    """
    if not sys.platform.startswith("linux"):
        return None
    if "mlx.core" in sys.modules:
        raise BlasTooLate("OpenBLAS has to be loaded before MLX is imported")
    count = threads or available_cores()
    # Otherwise it makes a pool for every core as it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(count))
    # Its idle threads otherwise spin for milliseconds (2**26 cycles), on the cores that everything else needs.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "8")
    for path in _candidates():
        library = _open(path)
        if library is not None:
            blas = Blas(path, library)
            blas.set_threads(count)
            return blas
    return None


def _candidates() -> Iterator[Path]:
    for site in _site_folders():
        path = site / "cmeel.prefix" / "lib" / "libopenblas.so"
        if path.is_file():
            yield path
    name = ctypes.util.find_library("openblas")
    if name is not None:
        yield Path(name)


def _site_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[key]) for key in ("platlib", "purelib")))


def _open(path: Path) -> ctypes.CDLL | None:
    """Open an OpenBLAS, lending it a Fortran runtime where the system has none."""
    try:
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as exc:
        if "libgfortran" not in str(exc):
            return None
    for runtime in _fortran_runtimes():
        if not _lend_runtime(runtime):
            continue
        try:
            return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def _fortran_runtimes() -> Iterator[Path]:
    """Fortran runtimes that wheels carry under mangled names (auditwheel), MLX's own first."""
    for site in _site_folders():
        for folder in ("mlx_cpu.libs", "numpy.libs"):
            yield from sorted((site / folder).glob("libgfortran-*.so.5*"))


def _lend_runtime(path: Path) -> bool:
    """Load a copy of a wheel's libgfortran under its usual name, from memory.

    The loader looks for ``libgfortran.so.5`` among the names of what is loaded, and auditwheel renames
    every library that it grafts; the usual name is still in the string table. Returns False where the
    copy cannot be made or opened.
    """
    try:
        image = bytearray(path.read_bytes())
        if not _rename(image, b"libgfortran.so.5"):
            return False
        for helper in path.parent.glob("libquadmath-*.so*"):
            ctypes.CDLL(str(helper))
        handle = os.memfd_create("libgfortran.so.5")
        os.write(handle, image)
        # The handle stays open for the life of the process: the loader knows the file by this path.
        ctypes.CDLL(f"/proc/self/fd/{handle}")
    except OSError:
        return False
    return True


_DYNAMIC_SEGMENT = 2
_LOAD_SEGMENT = 1
_TAG_STRINGS = 5
_TAG_SONAME = 14


def _rename(image: bytearray, soname: bytes) -> bool:
    """Point DT_SONAME of a 64-bit little-endian ELF image at *soname*, which its strings must hold.

    Layout from the System V ABI, chapter 5 (program header, dynamic section). Returns False for another
    kind of file, or where the string is missing.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        return False
    table, size, count = _program_headers(image)
    headers = [struct.unpack_from("<IIQQQQQQ", image, table + i * size) for i in range(count)]
    loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _LOAD_SEGMENT]
    dynamic = next((h for h in headers if h[0] == _DYNAMIC_SEGMENT), None)
    if dynamic is None:
        return False
    entries: dict[int, tuple[int, int]] = {}
    for at in range(dynamic[2], dynamic[2] + dynamic[5], 16):
        tag, value = struct.unpack_from("<qQ", image, at)
        entries.setdefault(tag, (at, value))
    if _TAG_STRINGS not in entries or _TAG_SONAME not in entries:
        return False
    address = entries[_TAG_STRINGS][1]
    strings = next(
        (offset + address - start for start, offset, n in loads if start <= address < start + n), None
    )
    if strings is None:
        return False
    found = image.find(b"\0" + soname + b"\0", strings)
    if found < 0:
        return False
    struct.pack_into("<Q", image, entries[_TAG_SONAME][0] + 8, found + 1 - strings)
    return True


def _program_headers(image: bytearray) -> tuple[int, int, int]:
    (offset,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    return offset, size, count
