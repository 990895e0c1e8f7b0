"""The ``decibatch`` command."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGES = ("queueing", "engine", "worker", "ops")
HOME = Path(__file__).resolve().parent.parent


def foreign_package() -> str | None:
    """One sentence on the first of our packages that is missing or is somebody else's; None if all are ours.

    The names are plain words, and other distributions have some of them too (``ops`` is one).
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None:
            return f"decibatch: its package {name!r} is not installed; reinstall decibatch."
        where = [Path(place) for place in spec.submodule_search_locations or [spec.origin or "unknown"]]
        if [place.resolve().parent for place in where] != [HOME]:
            return (
                f"decibatch: {where[0]} hides the package {name!r} of decibatch; install decibatch in a virtual "
                "environment of its own, or uninstall the other package."
            )
    return None


def main() -> None:
    """Run the command line; exits with 2 where another distribution hides one of our packages."""
    complaint = foreign_package()
    if complaint is not None:
        print(complaint, file=sys.stderr)
        raise SystemExit(2)
    importlib.import_module("ops.cli").main()


if __name__ == "__main__":
    main()
