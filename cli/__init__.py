"""The Typer application, one file per command: the only room that prints, exits or reads argv."""
