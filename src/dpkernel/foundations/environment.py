"""The environment variables that dpkernel reads. This module loads quickly."""

KEY_VARIABLE = "DPKERNEL_LEDGER_KEY_FILE"  # names the file with the key that protects a ledger
