"""The one exception base of oomdoc, caught once in `cli`.

Exceptions are for input that cannot be used; "could not tell" is a value (`diagnosers.interface.Inconclusive`).
"""


class OomdocError(Exception):
    """Something the user can act on. The message says what happened and what to type next.

    `exit_status` is what the command line returns: 2 usage, 3 the input cannot be read.
    """

    exit_status = 2


class UnreadableInputError(OomdocError):
    """The file is not a snapshot, config or log that oomdoc can read; nothing in it was executed."""

    exit_status = 3
