"""Room to work in on the host, kept from call to call: a large array that is made and dropped thousands of times
a second costs page faults, and leaves malloc in a state that no reading of memory can be compared with."""

from __future__ import annotations

import math
import threading

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_held = threading.local()


def scratch(*shape: int) -> FloatArray:
    """A float32 array of this shape with anything in it: the calling thread's own, good until its next call.

    Each thread keeps one buffer, as large as the largest that it asked for.
    """
    size = math.prod(shape)
    buffer: FloatArray | None = getattr(_held, "buffer", None)
    if buffer is None or buffer.size < size:
        buffer = _held.buffer = np.empty(size, np.float32)
    return buffer[:size].reshape(shape)
