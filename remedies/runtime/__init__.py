"""Apply a plan to an unmodified script while it runs, through torch's global hooks."""
