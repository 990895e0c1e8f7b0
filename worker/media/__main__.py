"""``python -m worker.media SOCKET CRASH``: started by the supervisor with two inherited descriptors."""

import sys

from worker.media.child import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
