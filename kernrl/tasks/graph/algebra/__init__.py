"""Fewer operations for the same result: rewrites that hold for every finite input, each with a name."""
