"""Attack privacy claims: lower bounds on what really leaks, with exact confidence."""

from dpkernel.proof.audit.core import AuditResult, Point, audit_scores
from dpkernel.proof.audit.estimator import audit
from dpkernel.proof.audit.files import audit_file
from dpkernel.proof.audit.one_run import (
    OneRunReport,
    audit_one_run,
    one_run_epsilon,
    one_run_p_value,
)
from dpkernel.proof.audit.report import AuditReport, Roc
from dpkernel.proof.audit.twins import WeakNoise

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
