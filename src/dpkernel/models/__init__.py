"""Kernels, feature maps and losses: functions of public parameters, never of data."""
