"""The ``feedstock`` command; see ``feedstock --help``."""

from __future__ import annotations

import signal
import sys

from feedstock import _feedstock


def main() -> None:
    """Runs the command with the process's arguments."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process, as with other commands
    sys.exit(_feedstock.command(["feedstock", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
