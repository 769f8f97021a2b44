"""The one exception that speaks to the user."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can mend: a wrong setting, a bad input file, a budget that cannot be met.

    Its text is a full sentence that says what was wrong, where (a file and line, a configuration key) and
    what to do. The command line prints the text alone, without a traceback, and ends with exit status 2.
    """
