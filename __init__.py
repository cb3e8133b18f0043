"""oomdoc: diagnose GPU out-of-memory in PyTorch jobs and prescribe the change that fixes it."""

__version__ = "0.1.0"
