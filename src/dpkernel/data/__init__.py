"""Data: turns a user's rows into bounded numbers, each row independent of the others."""
