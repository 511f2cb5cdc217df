"""``python -m hotshoe``: the command line."""

import sys

from hotshoe.cli import main

if __name__ == "__main__":
    sys.exit(main())
