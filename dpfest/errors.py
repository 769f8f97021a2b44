"""The one exception that speaks to the user."""


class UserError(ValueError):
    """A mistake that the user can mend: a wrong setting, a bad file, a model or a budget that cannot be used.

    Its text is a full sentence: what was wrong, where (a file and line, an argument, a layer), what to do.
    The command line prints the text alone and ends with exit status 2.
    """
