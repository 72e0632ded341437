"""`python -m dsv41_numba.pages FILE.md ...`: print pages filled, with what their code printed."""

import sys

from dsv41_numba.pages.fill import fill_file
from dsv41_numba.pages.markdown import PageError

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("expected Markdown files: python -m dsv41_numba.pages tutorials/index.md")
    try:
        for path in sys.argv[1:]:
            print(fill_file(path))
    except (OSError, PageError) as error:
        sys.exit(str(error))
