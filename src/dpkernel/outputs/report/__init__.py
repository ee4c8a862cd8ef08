"""A report for readers without Python: one HTML file that fetches nothing from outside."""

from dpkernel.outputs.report.page import write_report

__all__ = ["write_report"]
