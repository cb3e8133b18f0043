"""The entry point `oomdoc`: its commands, and the one place where an exception becomes a line and an exit status."""

import gc
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import OomdocError
from . import analyze, doctor, explain, fix, gate, plan, replay, run
from .options import SCRIPT_CONTEXT

INTERRUPTED = 130

EPILOG = (
    "Exit status: 0 fine; 1 out of memory, or the gate was exceeded; 2 wrong usage; 3 the input cannot be read; "
    "4 a fault of oomdoc; 130 interrupted. run returns the script's own status when the script fails of itself."
)


class Root(TyperGroup):
    """Turns what a command raises into its exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OomdocError as error:
            sys.stderr.write(f"oomdoc: {' '.join(str(error).split())}\n")
            raise typer.Exit(error.exit_status) from None
        except KeyboardInterrupt:
            sys.stderr.write("oomdoc: interrupted\n")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if _belongs_to_typer(error):
                raise
            from .fault import describe

            sys.stderr.write(describe(error))
            raise typer.Exit(4) from None


def _belongs_to_typer(error: Exception) -> bool:
    """Exit, Abort and usage errors; typer carries click within itself from 0.20 on, so their module differs."""
    return isinstance(error, BrokenPipeError) or any(
        base.__module__.startswith(("click.", "typer.")) for base in type(error).__mro__
    )


app = typer.Typer(
    name="oomdoc",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"oomdoc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Diagnose GPU out-of-memory in PyTorch jobs, and prescribe the change that fixes it."""


app.command(epilog=run.EPILOG, context_settings=SCRIPT_CONTEXT)(run.run)
app.command(epilog=analyze.EPILOG)(analyze.analyze)
app.command(epilog=plan.EPILOG, context_settings=SCRIPT_CONTEXT)(plan.plan)
app.command(epilog=fix.EPILOG)(fix.fix)
app.command(epilog=gate.EPILOG, context_settings=SCRIPT_CONTEXT)(gate.gate)
app.command(epilog=replay.EPILOG)(replay.replay)
app.command(epilog=explain.EPILOG)(explain.explain)
app.command(epilog=doctor.EPILOG)(doctor.doctor)


def main() -> None:
    # A short-lived process whose records hold no cycles: collecting costs a tenth of the start and frees nothing.
    gc.disable()
    app(prog_name="oomdoc")
