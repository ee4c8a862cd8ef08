"""Solvers: one algorithm per file, as pure functions of released numbers or of guarded sums."""
