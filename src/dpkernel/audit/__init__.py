"""Attacks on claims: lower bounds on what really leaks, with exact confidence."""

from dpkernel.audit.core import AuditResult, Point, audit_scores
from dpkernel.audit.estimator import audit
from dpkernel.audit.files import audit_file
from dpkernel.audit.one_run import (
    OneRunReport,
    audit_one_run,
    one_run_epsilon,
    one_run_p_value,
)
from dpkernel.audit.report import AuditReport, Roc
from dpkernel.audit.twins import WeakNoise

__all__ = [
    "AuditReport",
    "AuditResult",
    "OneRunReport",
    "Point",
    "Roc",
    "WeakNoise",
    "audit",
    "audit_file",
    "audit_one_run",
    "audit_scores",
    "one_run_epsilon",
    "one_run_p_value",
]
