"""``python -m autoinstr``: the same as the ``autoinstr`` command."""

import sys

from autoinstr.cli import main

if __name__ == "__main__":
    sys.exit(main())
