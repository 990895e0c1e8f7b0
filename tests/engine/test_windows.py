"""Windows and token caps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import windows

durations = st.floats(0.01, 30.0)


@given(durations)
def test_a_window_holds_the_chunk_and_its_margin(duration: float) -> None:
    """A window is the chunk and the margin behind it, or the 30 s that a model takes at most."""
    window = windows.window_s(duration)
    assert min(duration + windows.MARGIN_S, 30.0) - 1e-9 <= window <= 30.0


@given(durations)
def test_windows_are_few_and_aligned(duration: float) -> None:
    """Windows come from a short list, so that alike chunks share one and shapes stay few."""
    frames = windows.window_frames(duration)
    assert frames in windows.BUCKET_FRAMES
    assert frames % 16 == 0 or frames == 1500


@given(durations, durations)
def test_longer_chunks_never_get_less(first: float, second: float) -> None:
    """Window and token cap grow with the duration."""
    shorter, longer = sorted((first, second))
    assert windows.window_s(shorter) <= windows.window_s(longer)
    assert windows.token_cap(shorter) <= windows.token_cap(longer) <= windows.MAX_NEW_TOKENS


@pytest.mark.parametrize("duration", [-0.1, 30.1, float("nan")])
def test_impossible_durations_are_refused(duration: float) -> None:
    """A duration outside 0 to 30 s is an error, not a window."""
    with pytest.raises(ValueError, match="a chunk lasts"):
        windows.window_s(duration)
