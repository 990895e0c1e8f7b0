"""``python -m engine --fd N``: the engine process, over an inherited socket."""

from __future__ import annotations

import argparse

from engine import device, process


def main() -> int:
    """Run the engine; see :func:`engine.process.run`."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="The MLX process of a worker.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the worker")
    return process.run(parser.parse_args().fd, device.start)


if __name__ == "__main__":
    process.leave(main())
