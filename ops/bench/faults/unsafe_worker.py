"""``python -m ops.bench.faults.unsafe_worker``: a worker whose settle script has lost its fence.

The bench must be able to fail: over such workers it has to find results that were written twice. Nothing
but ``decibatch bench faults --without-fence`` starts this.
"""

from __future__ import annotations

import hashlib
import sys

import queueing.protocol
from ops.cli import main
from queueing.scripts import Script, script

FENCES = (
    """if TERMINAL[state] then
  drop_entry(stream, entry)
  return state
end
""",
    "if job[2] ~= attempt or state ~= 'running' then return 'stale' end\n",
)
"""What keeps an outcome from being written over another: the job has ended; the attempt is not the current one."""


def unfenced(fenced: Script) -> Script:
    """The same script without its fences. Raises ValueError where it has none that is known here."""
    source = fenced.source
    for fence in FENCES:
        if source.count(fence) != 1:
            raise ValueError(f"the script {fenced.name} has not exactly one fence {fence!r}")
        source = source.replace(fence, "")
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(fenced.name, source, sha)


def choose(name: str) -> Script:
    """What the queue is given in place of :func:`queueing.scripts.script`."""
    return unfenced(script(name)) if name == "settle" else script(name)


if __name__ == "__main__":
    vars(queueing.protocol)["script"] = choose
    sys.argv[1:] = ["worker"]
    main()
