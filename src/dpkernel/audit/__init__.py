"""Attacks on our own claims: lower bounds on what really leaks, with exact confidence."""

from dpkernel.audit.core import AuditResult, audit_scores

__all__ = ["AuditResult", "audit_scores"]
