"""The Typer application: its commands and their help."""

from typing import Any

import typer
from typer.core import TyperGroup

from .. import __version__
from . import analyze, diff, doctor, explain, fit, fix, gate, plan, replay, run
from .ending import exit_status
from .options import SCRIPT_CONTEXT, talking

EPILOG = (
    "Exit status: 0 fine; 1 out of memory, or the gate was exceeded; 2 wrong usage; 3 the input cannot be read; "
    "4 a fault of oomdoc; 130 interrupted. run returns the script's own status when the script fails of itself."
)


class Root(TyperGroup):
    """Turns what a command raises into its exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if _belongs_to_typer(error):
                raise
            raise typer.Exit(exit_status(error)) from None


def _belongs_to_typer(error: BaseException) -> bool:
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


app.command(epilog=run.EPILOG, context_settings=SCRIPT_CONTEXT)(talking(run.run))
app.command(epilog=analyze.EPILOG)(talking(analyze.analyze))
app.command(epilog=plan.EPILOG, context_settings=SCRIPT_CONTEXT)(talking(plan.plan))
app.command(epilog=fix.EPILOG, cls=fix.FixCommand)(talking(fix.fix))
app.command(epilog=fit.EPILOG, context_settings=SCRIPT_CONTEXT)(talking(fit.fit))
app.command(epilog=gate.EPILOG, context_settings=SCRIPT_CONTEXT)(talking(gate.gate))
app.command(epilog=diff.EPILOG)(talking(diff.diff))
app.command(epilog=replay.EPILOG)(talking(replay.replay))
app.command(epilog=explain.EPILOG)(talking(explain.explain))
app.command(epilog=doctor.EPILOG)(talking(doctor.doctor))
