"""Speed and word error rate of the whole path, beside the peers', in one run."""

# Tests and other benchmarks cut the same clips.
from ops.bench.speech.audio import cut

__all__ = ["cut"]
