"""The file from which an interrupted fit goes on, without a second spend or a second draw.

The file has what was released so far and the key of the noise that is still to be drawn. Noise of the
k-th release follows from the k-th key, the next key follows from it, and the old key is overwritten
when its release has been written. Hence:

- a release that is in the file is read from it and never drawn again;
- a release that is not in the file gets the same noise however often the fit goes on, from the file
  or from a copy of it, so that two runs show nothing that one does not show;
- when the fit has ended, all keys are overwritten, and the file holds released numbers only. From then
  on it gives back these numbers, whatever the table, and nothing can be drawn from it.

The same noise on another value would reveal the difference of the values. The fit therefore goes on
only with the same table, the same parameters, the same plan and the same software and threads, and
refuses anything else before it draws.

Until the fit has ended, the file is as secret as the table: whoever reads it can remove the noise that
is drawn later. Only its owner may read it.

Not handled: a file system that keeps overwritten data; somebody who writes such a file by hand; two
copies of a file that go on with another division of the threads. While a second fit of the same process
uses the threads of BLAS, or on a machine with less memory, features may get other last bits, and two
copies that go on to their ends then show the difference. Let one copy go on, and keep no other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import stat
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from threadpoolctl import threadpool_info

from dpkernel.foundations.entropy import secret_key
from dpkernel.foundations.errors import ParameterError, ResumeError, parameter_message
from dpkernel.foundations.types import JSON, Budget
from dpkernel.privacy.noise import _MINT, NoiseSource, Plan, ResumableNoise, SeededNoise
from dpkernel.version import __version__

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_FORMAT, _SCHEMA = "dpkernel resume file", 2
_HEADER, _STATE = 8192, 512  # bytes of the two parts that are written again in place
_ANEW = "Delete the file to start a new fit, which spends again."


class ResumeFile:
    """An open resume file, locked against other processes.

    Parameters
    ----------
    path : path
        The file. It is made if there is none.
    fit : JSON
        What is being fitted, from ``described``: a paid fit goes on with nothing else.
    noise : NoiseSource, optional
        None, or a ``SeededNoise`` whose seed then determines the keys.
    """

    def __init__(self, path: Any, fit: JSON, noise: NoiseSource | None = None) -> None:
        self.path = _checked_path(path)
        seeded = isinstance(noise, SeededNoise)
        if noise is not None and not seeded:
            allowed = "None or a SeededNoise in a fit with 'resume'"
            raise ParameterError(parameter_message("fit", "noise", allowed, type(noise).__name__))
        self._file = _opened(self.path)
        try:
            fit = {**fit, "noise": repr(noise)}
            kept = self._read_header()
            if kept is None or kept["spend"] is None:
                secret = _hash(f"{noise.seed}") if seeded else secret_key()  # type: ignore[union-attr]
                keys = {name: _hash(name, secret).hex() for name in ("table", "order")}
                self._header: JSON = {
                    "format": _FORMAT,
                    "schema": _SCHEMA,
                    "fit": fit,
                    "spend": None,
                }
                self._header |= {"environment": environment(), "keys": keys}
                self._lines: list[JSON] = []
                self._key = _hash("noise", secret)
                os.ftruncate(self._file, 0)
                self._write_header()
                self._write_state()
                os.ftruncate(self._file, _HEADER + _STATE)
            else:
                self._header = kept
                self._refuse_another(fit)
                self._read_lines()
        except BaseException:
            self.close()
            raise
        self._place, self._inside = 0, False
        self.pinned: Any = None  # public choices of the fit on which its values depend
        self.source = ResumableNoise(_MINT, self, seeded)

    @property
    def paid(self) -> bool:
        """Whether the spend of this fit has been recorded."""
        return self._header["spend"] is not None

    @property
    def spend(self) -> int:
        """The number of the spend in its ledger."""
        return int(self._header["spend"])

    @property
    def time(self) -> str:
        """When the spend was recorded, which tells it from another one with its number."""
        return str(self._header.get("time", ""))

    @property
    def in_ledger(self) -> bool:
        """Whether the spend was recorded in a ledger of the user."""
        return bool(self._header["in_ledger"])

    @property
    def ended(self) -> bool:
        """Whether the fit has ended, so that all its releases are in the file."""
        return "ended" in self._header

    def end(self) -> None:
        """Overwrite every key: the fit has ended, and its table must stay secret."""
        self._header |= {"ended": True, "keys": {}, "table": None}
        self._write_header()
        self._key = b""
        self._write_state()

    @property
    def table_key(self) -> bytes:
        """The key of the fingerprint of the table."""
        return secret_key() if self.ended else bytes.fromhex(self._header["keys"]["table"])

    def order(self) -> NoiseSource:
        """Return a source for the secret order of people, the same at each call."""
        found = ResumableNoise(_MINT, self, seeded=True)
        found.start(secret_key() if self.ended else bytes.fromhex(self._header["keys"]["order"]))
        return found

    def check_table(self, fingerprint: str) -> None:
        """Note the table of a new fit; raise if a paid fit is continued on another one."""
        if not self.paid:
            self._header["table"] = fingerprint
        elif not self.ended and self._header["table"] != fingerprint:
            raise ResumeError(
                f"'{self.path.name}' belongs to a fit on another table, or on the same table in another"
                f" form or order. Nothing was drawn. Pass the same table, or: {_ANEW}"
            )

    def check_plan(self, plan: Plan) -> None:
        """Note the plan of a new fit; raise if a paid fit is continued with another one."""
        whole = json.dumps([plan.to_dict(), self.pinned], default=repr)
        found = hashlib.sha256(whole.encode()).hexdigest()
        if not self.paid:
            self._header["plan"] = found
        elif self._header["plan"] != found:
            raise ResumeError(
                f"'{self.path.name}' belongs to a fit that planned other releases. Nothing was drawn."
                f" Fit the same estimator with the same parameters, or: {_ANEW}"
            )

    def pay(self, number: int, time: str, claim: Budget, in_ledger: bool) -> None:
        """Note that the spend has been recorded, and when."""
        asked = [claim.epsilon, claim.delta]
        self._header |= {"spend": number, "time": time, "claim": asked, "in_ledger": in_ledger}
        self._write_header()

    def once(self, mechanism: Any, claim: Callable[[], Any], make: Callable[[], Any]) -> Any:
        """Return a release from the file; if it is not there yet, make it and write it.

        ``claim`` uses up the right to draw, and ``make`` draws.
        """
        if self._inside:  # one mechanism releases through another
            return make()
        name = hashlib.sha256(json.dumps(mechanism.to_dict(), default=repr).encode()).hexdigest()
        if self._place < len(self._lines):
            line = self._lines[self._place]
            if line["mechanism"] != name:
                raise ResumeError(f"'{self.path.name}' has another release here. {_ANEW}")
            claim()
            self._place += 1
            return _decoded(line["value"])
        if self.ended:
            raise ResumeError(f"The fit of '{self.path.name}' has ended. {_ANEW}")
        self.source.start(self._key)
        self._inside = True
        try:
            value = make()
        finally:
            self._inside = False
            self.source.stop()
        self._append({"mechanism": name, "value": _encoded(value)})
        self._place += 1
        return value

    def close(self) -> None:
        """Close the file and give up the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # --- the bytes of the file ------------------------------------------------------------------

    def _append(self, line: JSON) -> None:
        whole = _sealed(line) + b"\n"
        os.lseek(self._file, 0, os.SEEK_END)
        while whole:
            whole = whole[os.write(self._file, whole) :]
        os.fsync(self._file)
        self._lines.append(line)
        self._key = _hash("next", self._key)
        self._write_state()

    def _write_header(self) -> None:
        self._write(0, self._header, _HEADER)

    def _write_state(self) -> None:
        self._write(_HEADER, {"count": len(self._lines), "key": self._key.hex()}, _STATE)

    def _write(self, start: int, values: JSON, size: int) -> None:
        text = _sealed(values)
        if len(text) >= size:
            raise ParameterError("The parameters of this fit are too long for a resume file.")
        os.pwrite(self._file, text.ljust(size - 1) + b"\n", start)
        os.fsync(self._file)

    def _read_header(self) -> JSON | None:
        """Return the header, or None of a file that is empty."""
        return _header_of(os.pread(self._file, _HEADER, 0), self.path)

    def _read_lines(self) -> None:
        """Read the releases; a last line that was not written to its end is cut off."""
        size = os.fstat(self._file).st_size
        self._lines, end = [], _HEADER + _STATE
        for raw in os.pread(self._file, max(size - end, 0), end).splitlines(keepends=True):
            try:
                self._lines.append(_unsealed(raw))
            except ValueError:
                break
            end += len(raw)
        try:
            state = _unsealed(os.pread(self._file, _STATE, _HEADER))
            self._key, missing = bytes.fromhex(state["key"]), len(self._lines) - state["count"]
        except (ValueError, KeyError, TypeError):
            missing = -1
        if missing not in (0, 1):  # the state is written just after a line
            raise ResumeError(f"'{self.path.name}' is damaged. {_ANEW}")
        os.ftruncate(self._file, end)
        if missing:
            self._key = _hash("next", self._key)
            self._write_state()

    def _refuse_another(self, fit: JSON) -> None:
        if self._header["fit"] != fit:
            different = [n for n in fit if self._header["fit"].get(n) != fit[n]] or ["parameters"]
            raise ResumeError(
                f"'{self.path.name}' belongs to a fit with another {different[0]!r}. Nothing was drawn."
                f" Use the same estimator and parameters, or: {_ANEW}"
            )
        before, here = self._header["environment"], environment()
        for name in here:
            if before.get(name) != here[name]:
                raise ResumeError(
                    f"The fit of '{self.path.name}' was begun with {name} {before.get(name)}, here it is"
                    f" {here[name]}. The last bits of the features may differ, and the same noise on"
                    " them would reveal it. Nothing was drawn. Go on with the same software, machine"
                    " and number of threads."
                )


def paid_budget(path: Path) -> Budget | None:
    """Return the budget of the fit that a resume file belongs to; None if nothing was paid for yet."""
    try:
        with path.open("rb") as file:
            header = _header_of(file.read(_HEADER), path)
    except FileNotFoundError:
        return None
    return None if header is None or header["spend"] is None else Budget(*header["claim"])


def _header_of(text: bytes, path: Path) -> JSON | None:
    if not text:
        return None
    try:
        found = _unsealed(text)
        fine = found["format"] == _FORMAT and found["schema"] == _SCHEMA
        fine = fine and {"fit", "spend", "environment", "keys"} <= set(found)
    except (ValueError, KeyError, TypeError):
        fine = False
    if not fine:
        raise ResumeError(
            f"'{path.name}' is not a resume file, or it is damaged or from another version of dpkernel."
            " Choose another name."
        )
    return found


def _sealed(values: JSON) -> bytes:
    """Return values as text behind its hash, so that a damaged key draws nothing."""
    text = json.dumps(values).encode()
    return hashlib.sha256(text).hexdigest().encode() + b" " + text


def _unsealed(raw: bytes) -> JSON:
    """Return sealed values, with a line break at their end; raise ValueError if a byte differs."""
    digest, _, text = raw.rstrip(b" \n").partition(b" ")
    if not raw.endswith(b"\n") or hashlib.sha256(text).hexdigest().encode() != digest:
        raise ValueError
    found: JSON = json.loads(text)
    return found


def environment() -> JSON:
    """Return what the last bits of a sum depend on besides the rows."""
    libraries = sorted(
        f"{found['internal_api']} {found['version']} {found.get('architecture')},"
        f" {found['num_threads']} thread(s)"
        for found in threadpool_info()
        if found["user_api"] == "blas"
    )
    return {
        "dpkernel": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
        "BLAS": sorted(set(libraries)),
    }


def described(name: str, parameters: Mapping[str, Any]) -> JSON:
    """Return what an estimator and its parameters are, for comparison; ledger and noise are left out."""
    left_out = ("ledger", "noise", "verbose")
    kept = {n: _described(v) for n, v in parameters.items() if n not in left_out}
    return {"estimator": name} | {
        n: hashlib.sha256(json.dumps(v).encode()).hexdigest()[:32] for n, v in kept.items()
    }


def _described(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, np.number)):
        return [type(value).__name__, repr(value)]
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Mapping):
        return [[_described(k), _described(v)] for k, v in value.items()]
    if isinstance(value, (list, tuple, np.ndarray)):
        return [type(value).__name__, *map(_described, value)]
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if is_dataclass(value) and not isinstance(value, type):
        return [name, [[f.name, _described(getattr(value, f.name))] for f in fields(value)]]
    if hasattr(value, "get_params"):
        return [name, _described(value.get_params(deep=False))]
    if hasattr(value, "to_dict"):
        return [name, _described(value.to_dict())]
    allowed = "numbers, texts, arrays, or objects of dpkernel"
    raise ParameterError(
        parameter_message("fit", "resume", f"left out, or parameters of {allowed}", name)
    )


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, value.shape, data]}
    if isinstance(value, (int, np.integer)):
        return {"int": int(value)}
    if isinstance(value, (float, np.floating)):
        return {"float": float(value).hex()}
    raise AssertionError(f"a release of type {type(value).__name__} can't be written")


def _decoded(value: JSON) -> Any:
    if "array" in value:
        dtype, shape, data = value["array"]
        if dtype not in ("<f8", "<i8"):
            raise ResumeError(f"A release in the resume file has an unknown type. {_ANEW}")
        return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
    return value["int"] if "int" in value else float.fromhex(value["float"])


def _hash(word: str, key: bytes = b"") -> bytes:
    return hashlib.sha256(word.encode() + b"\0" + key).digest()


def _checked_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        allowed = "the path of a file, or None"
        raise ParameterError(parameter_message("fit", "resume", allowed, type(path).__name__))
    return Path(path)


def _opened(path: Path) -> int:
    """Return the file, locked, which only its owner may read; it is made if there is none."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise ResumeError(f"'{path.name}' can't be opened: {error.strerror}.") from None
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise ResumeError(f"'{path.name}' is not a file.")
        if os.name == "posix" and (state.st_mode & 0o077 or state.st_uid != os.geteuid()):
            raise ResumeError(
                f"Others may read '{path.name}', which has the key of noise that is still to be drawn."
                " Nothing was drawn. Make it yours alone (chmod 600) if nobody has read it."
            )
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ResumeError(f"Another fit is using '{path.name}' now.") from None
    except BaseException:
        os.close(file)
        raise
    return file
