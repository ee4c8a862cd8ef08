"""``python -m dpkernel`` is the command line."""

from dpkernel.cli import app

app(prog_name="dpkernel")
