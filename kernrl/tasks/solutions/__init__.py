"""Worked Triton answers, written by rule from a program: `styles.write_solutions` is the door."""
