"""Attacks and studies: the audit, the papers as printed, and their reproductions."""
