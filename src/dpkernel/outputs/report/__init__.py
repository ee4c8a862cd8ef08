"""A report that a reader without Python understands: one HTML file, nothing fetched from outside."""

from dpkernel.outputs.report.page import write_report

__all__ = ["write_report"]
