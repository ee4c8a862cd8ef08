"""Attacks on our own claims: lower bounds on what really leaks, with exact confidence."""

from dpkernel.audit.core import AuditResult, Point, audit_scores
from dpkernel.audit.estimator import audit
from dpkernel.audit.report import AuditReport, Roc

__all__ = ["AuditReport", "AuditResult", "Point", "Roc", "audit", "audit_scores"]
