"""What attacks and what studies: the audit, the papers as printed, their reproductions."""
