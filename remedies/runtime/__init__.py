"""A remedy applied to an unmodified script, in its own process, through torch's entry points. Imports torch."""
