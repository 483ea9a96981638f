"""Make ``python -m iglu`` run the command ``iglu``."""

import sys

from iglu.cli import main

if __name__ == "__main__":
    sys.exit(main())
