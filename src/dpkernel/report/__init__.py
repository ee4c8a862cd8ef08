"""A report that a reader without Python understands: one HTML file, nothing fetched from outside."""

from dpkernel.report.page import write_report

__all__ = ["write_report"]
