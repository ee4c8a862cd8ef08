"""How much noise, who draws it and who records it: sensitivities to certificates."""
