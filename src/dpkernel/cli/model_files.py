"""Write and read model files for the commands, with the columns that ``fit`` stores beside the model."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpkernel.cli.output import Refusal
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.labels import declared_classes
from dpkernel.data.table_files import ColumnRule, Schema
from dpkernel.foundations.archive import read_json, require_folder
from dpkernel.foundations.errors import CertificateError, ModelFileError
from dpkernel.foundations.types import JSON, Budget
from dpkernel.outputs.model_file import FileCheck, load, read_header, save, verify_file
from dpkernel.outputs.report import write_report
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger
from dpkernel.selection.score import PrivateScore

_ROOM = 2**22  # bytes that must be free for a model before anything is spent for it


def check_outputs(
    outputs: Sequence[Path | None], inputs: Sequence[Path | None], *, force: bool
) -> None:
    """Raise before anything is spent if a result has no folder or would replace a file.

    ``force`` allows to replace a file, but neither an input nor another result.
    """
    wanted = [path for path in outputs if path is not None]
    for place, path in enumerate(wanted):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "It is a folder", str(path))
        try:
            require_folder(path)
        except FileNotFoundError as error:
            raise Refusal(str(error)) from None
        if any(one is not None and _same(path, one) for one in inputs):
            raise Refusal(f"{path.name} is an input. Choose another name for the result.")
        if any(_same(path, other) for other in wanted[:place]):
            raise Refusal(
                f"{path.name} would hold two results. Choose another name for one of them."
            )
        if path.is_file() and not force:
            raise Refusal(
                f"{path.name} already exists. Choose another name, or replace it with --force."
            )


def check_room(path: Path) -> None:
    """Raise before anything is spent if a file of a model's size can't be written there."""
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as draft:
            written = draft.write(bytes(_ROOM))
            if written < _ROOM:
                draft.write(bytes(_ROOM - written))  # raises with the reason
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


@contextlib.contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to. It becomes ``path`` in one step, or it is removed."""
    if path.exists() and not path.is_file():  # a device or a pipe
        yield path
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".part", dir=path.parent))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield folder / path.name
        (folder / path.name).replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(path: Path, *writers: Callable[[Path], object]) -> None:
    """Write a result that the budget was spent on.

    If the first writer fails for any reason, the first writer that succeeds saves the result in a
    temporary folder, and the error says where it is.
    """
    try:
        writers[0](path)
        return
    except Exception as error:  # its text may quote private data
        failure = error
    why = getattr(failure, "strerror", None) or type(failure).__name__
    copy = _rescued(path.name, writers)
    rest = "no copy of it could be kept" if copy is None else f"the result is in {copy}"
    raise Refusal(f"{path.name} can't be written ({why}). The budget is spent; {rest}") from failure


def _rescued(name: str, writers: Sequence[Callable[[Path], object]]) -> Path | None:
    try:
        folder = Path(tempfile.mkdtemp(prefix="dpkernel-"))
    except OSError:
        return None
    for write in writers:
        with contextlib.suppress(Exception):  # the next writer may succeed
            write(folder / name)
            return folder / name
    shutil.rmtree(folder, ignore_errors=True)
    return None


def model_notes(schema: Schema, task: str) -> JSON:
    """Return what ``fit`` stores beside the model. Raises if it could not be read back from a file."""
    notes = {"task": task, "schema": schema.to_dict()}
    try:
        if read_json(json.dumps(notes, allow_nan=False).encode()) == notes:
            return notes
    except ValueError:
        pass
    raise Refusal(
        "A model file can't hold what bounds.toml declares, because it has too many levels or values"
        " that JSON can't express. Nothing was spent."
    )


def save_model(model: Any, path: Path, notes: JSON, *, force: bool) -> None:
    """Write a fitted model with the columns that it was trained on. The budget is already spent."""

    def write(place: Path) -> None:
        if place.is_file() and not force:
            raise FileExistsError(errno.EEXIST, "it was created during the fit", str(place))
        save(model, place, metadata=notes)

    keep(path, write, lambda place: save(model, place, metadata=None))


def is_certificate(path: Path) -> bool:
    """Whether a file is a certificate and not a model. A certificate is JSON and starts with a brace."""
    with path.open("rb") as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def read_certificate(path: Path) -> Certificate:
    """Return the certificate in a JSON file or in a model file."""
    if is_certificate(path):
        return Certificate.from_json(path.read_bytes())
    found: Certificate = load(path).certificate_
    return found


def prove(path: Path) -> tuple[Certificate, Budget, FileCheck | None]:
    """Recompute the claim of a certificate or model file, and check the integrity of the file.

    Returns the certificate, the budget that its parameters prove, and the check of a model file (None
    for a certificate).
    """
    if is_certificate(path):
        certificate = Certificate.from_json(path.read_bytes())
        return certificate, certificate.verify(), None
    check = verify_file(path)
    return check.certificate, check.proved, check


def model_metadata(path: Path) -> JSON:
    """Return what ``fit`` stored beside the model. It is empty for a model saved from Python."""
    return dict(read_header(path).get("metadata") or {})


def model_schema(path: Path, model: Any) -> Schema:
    """Return the columns that new rows must have."""
    stored = stored_schema(path)
    if stored is not None:
        return stored
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise CertificateError(
            f"{path.name} does not say which columns it was trained on, because it was saved from Python"
            " without column names. Predict in Python."
        )
    return Schema(tuple(ColumnRule(str(name), None) for name in names))


def stored_schema(path: Path) -> Schema | None:
    """Return the columns that ``fit`` stored beside the model; None if it was saved from Python.

    Raises if they are not the columns of the model, because new rows would be read wrongly.
    """
    header = read_header(path)
    if "schema" not in header["metadata"]:
        return None
    schema, domain = Schema.from_dict(header["metadata"]["schema"]), header.get("domain")
    if isinstance(domain, dict):
        found = schema.domain().to_dict()
        if schema.target is not None and schema.target.values is not None:
            found["target"] = _as_fitted(schema.target.values).to_dict()
        known = [name for name in found if found[name] is not None and domain[name] is not None]
        if any(found[name] != domain[name] for name in known):
            raise ModelFileError(
                f"The columns that {path.name} describes are not those that its model was fitted to."
            )
    return schema


def _as_fitted(target: Interval | Levels) -> Interval | Levels:
    """Return a declared target as a model states it: classes are sorted there."""
    return declared_classes(target.values, "fit") if isinstance(target, Levels) else target


def report(
    subject: Any,
    path: Path,
    ledger: Ledger | None,
    title: str,
    schema: Schema | None = None,
    score: PrivateScore | None = None,
) -> Path:
    """Write the HTML report of a model or certificate."""
    with draft(path) as place:
        write_report(subject, place, ledger=ledger, scores=score, schema=schema, title=title)
    return path
