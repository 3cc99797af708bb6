"""`python -m keyhole`: the same command as the installed `keyhole`."""

import sys

from keyhole.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
