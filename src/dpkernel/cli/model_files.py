"""Model files as the commands use them: what a fit writes beside the model, and reads again."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

from dpkernel.certificate import Certificate
from dpkernel.cli.output import Refusal
from dpkernel.errors import CertificateError
from dpkernel.ledger import Ledger
from dpkernel.model_file import FileCheck, load, read_header, save, verify_file
from dpkernel.report import write_report
from dpkernel.table_files import ColumnRule, Schema
from dpkernel.types import JSON, Budget

_ROOM = 2**22  # bytes that must be free for a model before anything is spent for it


def check_room(path: Path, *inputs: Path | None) -> None:
    """Raise now, before anything is spent, if a file of a model's size can't be written there.

    Nor may it replace one of the inputs.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "It is a folder", str(path))
    if any(one is not None and _same(path, one) for one in inputs):
        raise Refusal(f"{path.name} is an input: choose another name for the result.")
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as draft:
            written = draft.write(bytes(_ROOM))
            if written < _ROOM:
                draft.write(bytes(_ROOM - written))  # raises with the reason
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def save_model(model: Any, path: Path, schema: Schema, task: str) -> Path:
    """Write a fitted model with the columns that it was trained on.

    The budget is spent by now. If the file can't be written after all, the model goes to a temporary
    folder, and the error says where.
    """
    metadata = {"task": task, "schema": schema.to_dict()}
    try:
        return save(model, path, metadata=metadata)
    except OSError as error:
        rescue = Path(tempfile.mkdtemp(prefix="dpkernel-")) / path.name
        try:
            save(model, rescue, metadata=metadata)
        except OSError:
            raise error from None
        raise Refusal(
            f"{path.name} can't be written ({error.strerror}). The budget is spent; the model lies in"
            f" {rescue}"
        ) from error


def is_certificate(path: Path) -> bool:
    """Whether a file is a certificate rather than a model: JSON begins with a brace."""
    with path.open("rb") as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def read_certificate(path: Path) -> Certificate:
    """Return the certificate in a JSON file or in a model file."""
    if is_certificate(path):
        return Certificate.from_json(path.read_bytes())
    found: Certificate = load(path).certificate_
    return found


def prove(path: Path) -> tuple[Certificate, Budget, FileCheck | None]:
    """Recompute the claim of a certificate or model file and check the file's integrity.

    Returns the certificate, what its parameters prove, and what was found of a model file.
    """
    if is_certificate(path):
        certificate = Certificate.from_json(path.read_bytes())
        return certificate, certificate.verify(), None
    check = verify_file(path)
    return check.certificate, check.proved, check


def model_metadata(path: Path) -> JSON:
    """Return what ``fit`` wrote beside the model; empty for a model that was saved from Python."""
    return dict(read_header(path).get("metadata") or {})


def model_schema(path: Path, model: Any) -> Schema:
    """Return the columns that new rows must have."""
    stored = stored_schema(path)
    if stored is not None:
        return stored
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise CertificateError(
            f"{path.name} does not say which columns it was trained on: it was saved from Python"
            " without column names. Predict in Python."
        )
    return Schema(tuple(ColumnRule(str(name), None) for name in names))


def stored_schema(path: Path) -> Schema | None:
    """Return the columns that ``fit`` wrote beside the model; None where it was saved from Python."""
    metadata = model_metadata(path)
    return Schema.from_dict(metadata["schema"]) if "schema" in metadata else None


def report(
    subject: Any, path: Path, ledger: Ledger | None, title: str, schema: Schema | None = None
) -> Path:
    """Write the HTML report of a model or certificate."""
    return write_report(subject, path, ledger=ledger, schema=schema, title=title)
