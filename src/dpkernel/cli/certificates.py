"""``dpkernel show``, ``verify`` and ``report``: print, check and explain a certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpkernel.cli import options
from dpkernel.cli.model_files import (
    check_outputs,
    draft,
    is_certificate,
    model_metadata,
    prove,
    read_certificate,
    stored_schema,
)
from dpkernel.cli.model_files import report as write_report
from dpkernel.cli.output import REFUSED, Output, one_line
from dpkernel.data.table_files.schema import described
from dpkernel.outputs.model_file import load

CertificateFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A model file or a certificate (JSON).")
]

_OLD_FILE = "The file has an old format without hashes, so changed numbers would not be noticed"


def show(
    output: Output,
    file: CertificateFile,
    out: Annotated[
        Path | None, typer.Option(help="Also write the certificate to this file, as JSON.")
    ] = None,
    force: options.Force = False,
) -> None:
    """Print a certificate in words, and the columns of a model."""
    check_outputs([out], [file], force=force)
    certificate = read_certificate(file)
    if out is not None:
        with draft(out) as path:
            path.write_text(certificate.to_json(), encoding="utf-8")
    output.explain(str(certificate))
    data = {"certificate": json.loads(certificate.to_json())}
    if not is_certificate(file):
        metadata = model_metadata(file)
        data["metadata"] = metadata
        schema = stored_schema(file)
        if schema is not None:
            output.say()
            for line in described(schema.inputs):
                output.say(f"input    {one_line(line)}")
            if schema.target is not None:
                output.say(f"target   {one_line(described([schema.target])[0])}")
    output.result(data)


def verify(output: Output, file: CertificateFile) -> None:
    """Recompute epsilon and delta; exit with 1 if the parameters do not support the claim."""
    certificate, proved, check = prove(file)
    output.say(f"The parameters support the claim: {proved}.")
    if check is not None:
        whole = "The parts of the file are unchanged" if check.hashed else _OLD_FILE
        output.say(f"{whole}; its SHA-256 is {check.digest}.")
    if not certificate.private:
        why = "; ".join(certificate.reasons)
        output.fail(f"But it is NOT PRIVATE: {why}.", REFUSED, private=False)
    claim = {"epsilon": proved.epsilon, "delta": proved.delta, "private": True}
    known = {} if check is None else {"sha256": check.digest, "hashed": check.hashed}
    output.result({**claim, **known})


def report(
    output: Output,
    file: CertificateFile,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "Privacy report",
    ledger: options.LedgerFile = None,
    dataset: options.Dataset = None,
    wait: options.Wait = 30.0,
    force: options.Force = False,
) -> None:
    """Write one HTML page that explains a model and its guarantee to people without Python."""
    check_outputs([out], [file, ledger], force=force)
    subject = read_certificate(file) if is_certificate(file) else load(file)
    book = (
        None if ledger is None else options.open_ledger(ledger, dataset, "", wait, read_only=True)
    )
    write_report(subject, out, book, title, None if is_certificate(file) else stored_schema(file))
    output.say(f"The report is in {out}")
    output.result({"report": str(out)})
