"""``python -m feedstock._rows FD PARENT``: a process that runs a function of ``Pipeline.map_rows``."""

import sys

from feedstock._rows.child import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
