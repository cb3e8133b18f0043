"""Whose byte is it: from recorded categories where there are any, else from frames, lifetimes and sizes."""
