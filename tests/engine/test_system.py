"""The machine's memory, read from what the systems' own tools print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine import system
from engine.system import CRITICAL, NORMAL, WARN, SystemMemory

RECORDED = Path(__file__).parent / "macos"
PAGE = 16384


def test_vm_stat_is_read_by_label() -> None:
    """Free, speculative and purgeable pages are available; what was paged and swapped counts together."""
    read = system.parse_vm_stat((RECORDED / "vm_stat-8gb-busy.txt").read_text())
    assert read == SystemMemory(
        available=PAGE * (5076 + 844 + 429),
        page_ins=PAGE * (25988278 + 10554789),
        page_outs=PAGE * (690778 + 11137186),
    )


def test_vm_stat_of_another_release_is_read_alike() -> None:
    """Widths of labels, their order and lines that are new change nothing."""
    text = (RECORDED / "vm_stat-8gb-busy.txt").read_text()
    head, *lines = text.splitlines()
    narrow = "\n".join(
        [head, "Pages tag storage: 7.", *(line.replace("  ", " ") for line in reversed(lines))]
    )
    assert system.parse_vm_stat(narrow) == system.parse_vm_stat(text)


def test_sysctl_tells_pressure_and_swap() -> None:
    """A machine of 48 GB under warning, with 11.6 GB of swap in use."""
    level, swap = system.parse_sysctl((RECORDED / "sysctl-48gb-warn.txt").read_text())
    assert (level, swap) == (WARN, int(11625.69 * 2**20))


@pytest.mark.parametrize("text", ["", "vm_stat: command not found", "kern.boottime: 1"])
def test_what_says_nothing_is_unknown(text: str) -> None:
    """Output without the labels gives zeros, which mean unknown."""
    assert system.parse_vm_stat(text) == SystemMemory()
    assert system.parse_sysctl(text) == (0, 0)


@pytest.mark.parametrize(
    ("some", "full", "level"), [(0.0, 0.0, NORMAL), (12.5, 0.0, WARN), (40.0, 15.0, CRITICAL)]
)
def test_stalls_are_pressure(some: float, full: float, level: int) -> None:
    """Linux: that some task waits for memory is a warning, that all do is critical."""
    text = f"some avg10={some} avg60=0.00 avg300=0.00 total=1\nfull avg10={full} avg60=0.00 avg300=0.00 total=0\n"
    assert system.parse_stalls(text) == level


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_linux_tells_what_is_available() -> None:
    """On Linux a reading has memory available, and a pressure level where the kernel counts stalls."""
    read = system.read()
    assert read.available > 1 << 26
    assert read.pressure in (0, NORMAL, WARN, CRITICAL)
