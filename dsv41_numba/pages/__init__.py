"""The site's pages: Markdown in which code runs and every number comes from the package.

A page in `tutorials/` has two things that plain Markdown has not: `{{ expression }}`, evaluated with the names of
`pages.names`, and fences marked `run`, whose code is executed and whose real output stands below them. `fill` makes
plain Markdown of it; the site, the notebooks and `python -m dsv41_numba.pages FILE.md` all start from there.
"""

from dsv41_numba.pages.fill import fill
from dsv41_numba.pages.markdown import PageError

__all__ = ["PageError", "fill"]
