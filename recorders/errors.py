"""What a recorder cannot do."""

from ..errors import OomdocError


class UnsupportedOperationError(OomdocError):
    """The virtual GPU does not know what this operation allocates: it stops instead of guessing."""

    def __init__(self, operation: str, what: str, hint: str, file: str = "", line: int = 0) -> None:
        self.operation = operation
        self.what = what
        self.hint = hint
        self.file = file
        self.line = line
        where = f" ({file}:{line})" if file else ""
        super().__init__(f"{what}{where}\n{hint}")


class MissingExtensionError(UnsupportedOperationError, ImportError):
    """The script imports a name of an extension that this machine lacks and nobody has taught: it may have another way.

    As an ImportError, so that `try: from flash_attn import ...` with a fallback goes on by the fallback.
    """
