"""The one exception that a person is meant to read."""


class UserError(Exception):
    """Something the user can mend, told in one clear sentence that names the file, line or key.

    The command line prints it without a traceback and exits with a non-zero code.
    """
