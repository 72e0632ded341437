"""`python -m dsv41_numba` is the `dsv41` command."""

import sys

from dsv41_numba.cli import main

if __name__ == "__main__":
    sys.exit(main())
