"""Exceptions and warnings, and the common form of all error messages.

An error says what is wrong, what was passed and what to do. It never prints a data value, only
shapes, dtypes and column positions.
"""

from __future__ import annotations

from enum import Enum
from numbers import Number

_MOST_QUOTED = 8  # numbers and texts in one message


class DPKernelError(Exception):
    """Base class of every error that dpkernel raises on purpose."""


class ParameterError(DPKernelError, ValueError):
    """A parameter has a value that is not allowed."""


class DataError(DPKernelError, ValueError):
    """The data can't be used as they are. Nothing was spent, unless the message says otherwise."""


class NoRowsError(DataError):
    """The table has no rows."""


class DataTypeError(DataError, TypeError):
    """An entry of the data has a type that can't be used, such as a dict or a date."""


class AssumptionError(DPKernelError, ValueError):
    """A mechanism rests on an assumption that the user has not accepted."""


class NoiseError(DPKernelError, RuntimeError):
    """Noise was requested that no recorded spend pays for."""


class LedgerError(DPKernelError, RuntimeError):
    """The ledger can't do what was requested."""


class BudgetExceededError(LedgerError):
    """The spend does not fit under the ledger's ceiling. Nothing was spent."""


class CuratorError(DPKernelError, RuntimeError):
    """A curator can't answer, or its file can't be read. Nothing was answered."""


class ResumeError(DPKernelError, RuntimeError):
    """An interrupted fit can't go on from its file as requested. Nothing was drawn."""


class CertificateError(DPKernelError, ValueError):
    """A certificate is malformed, or its parameters do not support its claim."""


class ModelFileError(CertificateError):
    """A model file is damaged or was changed, or the file is not a model file."""


class PrivacyWarning(UserWarning):
    """The user does something that is allowed but weakens the protection."""


def parameter_message(owner: str, name: str, must_be: str, got: object, advice: str = "") -> str:
    """Return the common form of an error message: what is wrong, what was passed, what to do.

    Parameters
    ----------
    owner, name : str
        The class or function, and its parameter.
    must_be : str
        What is allowed.
    got : object
        What was passed. It must not be a data value. Numbers, texts and a few of them are quoted. Of
        anything else the class is named, because it may be a table that stands in a wrong place.
    advice : str, optional
        What to do.

    Examples
    --------
    >>> parameter_message("Budget", "epsilon", "a float in the range (0, inf)", float("nan"))
    "The 'epsilon' parameter of Budget must be a float in the range (0, inf). Got nan."
    """
    quoted = got if _leaves(got) <= _MOST_QUOTED else type(got).__name__
    text = f"The '{name}' parameter of {owner} must be {must_be}. Got {quoted!r}."
    return f"{text} {advice}" if advice else text


def _leaves(value: object) -> int:
    """Return how many numbers and texts a value holds: too many to quote if it holds anything else."""
    if value is None or isinstance(value, (str, Number, Enum)) or hasattr(value, "item"):
        return 1 if getattr(value, "shape", ()) == () else _MOST_QUOTED + 1
    if isinstance(value, (list, tuple)) and len(value) <= _MOST_QUOTED:
        return sum(map(_leaves, value))
    return _MOST_QUOTED + 1
