"""The ``feedstock`` command; see ``feedstock --help``."""

from __future__ import annotations

import logging
import os
import signal
import sys

from feedstock import _feedstock


def main() -> None:
    """Runs the command with the process's arguments."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process, as with other commands
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("feedstock.rows").setLevel(logging.INFO)  # what functions print on a worker
    code = _feedstock.command(["feedstock", *sys.argv[1:]])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # An exit of the interpreter would end threads of the library that wait for it in the middle of a call.
    os._exit(code)


if __name__ == "__main__":
    main()
