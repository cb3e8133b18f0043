"""Renderers: each a function of a Report that returns a string."""
