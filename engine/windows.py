"""How much time the encoder is given for a chunk, and how many tokens the decoder. No MLX here.

Whisper always encodes 30 s. Here only the chunk and some seconds behind it are encoded; what the rest of an empty 30 s
gives to attend to is computed once for each model (:class:`engine.whisper.kernels.Silence`). Windows that are merely
cut off need far more: over 54 stretches of real speech (tiny.en, 2.6 to 20 s, 1,368 words), errors were 61 with two
seconds behind the chunk, 53 with four, 52 with six, 50 with eight and with twelve, 49 with windows of 30 s. The words
that differ are choices between two that lie close, and neither a row's log-probability nor its closest choice tells
which rows those are. With silence behind them, windows of one, two and four seconds more than the chunk made the same
errors as windows of 30 s on each of 16 clips. The window depends on the chunk's duration alone, never on its neighbours
in a batch.
"""

from __future__ import annotations

import math

FRAMES_PER_SECOND = 50
"""Encoder frames a second: 10 ms mel frames, halved by the second convolution (Whisper paper, section 2.2)."""

MAX_WINDOW_S = 30.0
"""Length of the windows that Whisper was trained on (Whisper paper, section 2.1)."""

MARGIN_S = 2.0
"""Seconds behind the chunk that a window holds at least, except where 30 s cut it."""

BUCKET_FRAMES: tuple[int, ...] = (*range(128, 512, 32), *range(512, 1024, 64), *range(1024, 1500, 128), 1500)
"""Encoder frames of each window: multiples of 16 an eighth to a quarter apart, then 30 s."""

MAX_NEW_TOKENS = 224
"""Half of Whisper's text context: the rest is kept for a prompt (Whisper's DecodingTask.sample_len)."""


def window_frames(duration_s: float) -> int:
    """Encoder frames of the window of a chunk.

    :param duration_s: seconds, at most 30.
    :raises ValueError: negative, not a number, or over 30 s.
    """
    if not 0 <= duration_s <= MAX_WINDOW_S:
        raise ValueError(f"a chunk lasts between 0 and {MAX_WINDOW_S:g} s, not {duration_s}")
    needed = (duration_s + MARGIN_S) * FRAMES_PER_SECOND
    return next((frames for frames in BUCKET_FRAMES if frames >= needed), BUCKET_FRAMES[-1])


def window_s(duration_s: float) -> float:
    """Seconds that are encoded for a chunk of *duration_s* seconds. See :func:`window_frames`."""
    return window_frames(duration_s) / FRAMES_PER_SECOND


def token_cap(duration_s: float) -> int:
    """Most new tokens that a chunk of this many seconds may give before it counts as a loop.

    Fast English is 7 tokens a second, timestamps included; languages whose letters take two or three
    tokens each reach 16.
    """
    return min(MAX_NEW_TOKENS, 32 + math.ceil(16 * duration_s))
