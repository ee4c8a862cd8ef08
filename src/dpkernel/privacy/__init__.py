"""Privacy: how much noise is needed, who draws it and who records it."""
