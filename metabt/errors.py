"""What ends a command before its work is done."""

EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: a training run was asked to stop, and can go on


class UserError(Exception):
    """Something the user can mend, told in one clear sentence that names the file, line or key.

    The command line prints it without a traceback and exits with a non-zero code.
    """


class Interrupted(Exception):  # noqa: N818
    """A signal asked us to stop, and everything is saved: the same command goes on."""
