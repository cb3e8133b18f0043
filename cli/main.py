"""The entry point `oomdoc`."""

import gc
import sys

from . import direct


def main() -> None:
    # A short-lived process whose records hold no cycles: collecting costs a tenth of the start and frees nothing.
    gc.disable()
    try:
        request = direct.parse(sys.argv[1:])
        if request is not None:
            sys.exit(direct.run(request))
        from .app import app

        app(prog_name="oomdoc")
    finally:
        gc.freeze()  # the interpreter collects once more at its end
