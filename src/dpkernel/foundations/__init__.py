"""Foundations that know neither data nor privacy: types, errors, validation, rounding, entropy."""
