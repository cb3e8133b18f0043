"""The entry point: `oomdoc`."""

import typer

from .. import __version__

app = typer.Typer(name="oomdoc", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"oomdoc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Diagnose GPU out-of-memory in PyTorch jobs, and prescribe the change that fixes it."""


def main() -> None:
    app()
