"""Data with its sources: GPUs, links, thresholds, framework keys; and the typed loader."""
