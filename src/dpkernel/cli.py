"""The command line: ``dpkernel demo``, ``dpkernel show FILE``, ``dpkernel verify FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dpkernel.certificate import Certificate
from dpkernel.errors import DPKernelError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Private kernel models with a certificate anyone can verify.",
)
_out, _err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False)

CertificateFile = Annotated[
    Path, typer.Argument(help="A certificate (JSON) or a model file.", exists=True, dir_okay=False)
]


@app.command()
def show(file: CertificateFile) -> None:
    """Print a certificate in words."""
    try:
        _out.print(str(_read(file)), markup=False)
    except DPKernelError as error:
        _fail(error)


@app.command()
def verify(file: CertificateFile) -> None:
    """Recompute epsilon and delta from the parameters; exit with 1 if they do not support the claim."""
    try:
        certificate = _read(file)
        proved = certificate.verify()
    except DPKernelError as error:
        _fail(error)
    _out.print(f"The parameters support the claim: {proved}.")
    if not certificate.private:
        _err.print("But it is NOT PRIVATE: " + "; ".join(certificate.reasons) + ".", markup=False)
        raise typer.Exit(1)


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo")) -> None:
    """Train a private ridge on the diabetes data of scikit-learn; leave model, certificate, report."""
    from dpkernel.demo import run_demo

    run_demo(out, _out)


def _read(file: Path) -> Certificate:
    from dpkernel.model_file import load

    with file.open("rb") as stream:
        is_archive = stream.read(2) == b"PK"
    if is_archive:
        found: Certificate = load(file).certificate_
        return found
    return Certificate.from_json(file.read_bytes())


def _fail(error: DPKernelError) -> None:
    _err.print(f"error: {error}", markup=False)
    raise typer.Exit(1)
