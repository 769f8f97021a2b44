"""The exception whose message is for the user."""


class UserError(ValueError):
    """A mistake that the user can correct: a wrong setting, a bad file, a model or a plan that cannot be used.

    Its message is a full sentence: what was wrong, where (a file and line, an argument, a layer), what to do. The
    command line prints the message alone and ends with exit status 2.
    """
