"""Solvers: one algorithm a file, pure functions of released numbers or guarded sums."""
