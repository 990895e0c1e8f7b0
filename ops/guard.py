"""Runs a program that must not outlive whoever started it. Run as a script, never imported.

Standard input is a pipe held by the parent. When it closes, for whatever reason, SIGKILL of the parent
included, the program gets SIGTERM and, after a grace, SIGKILL. The first line on standard output is the
program's process id. Exits with the program's status (128 + n after signal n).

Usage: guard.py GRACE_S PROGRAM [ARGUMENT...]
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent decides when it ends. A handler, unlike SIG_IGN, is not inherited by the program.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)
    threading.Thread(target=_stop_at_end_of_input, args=(child, grace_s), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _stop_at_end_of_input(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    while os.read(0, 4096):
        pass
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main())
