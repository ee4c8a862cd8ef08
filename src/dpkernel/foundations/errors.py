"""Exceptions, warnings, and the one form every error sentence takes.

An error says what is wrong, what it got, and what to do. It never prints a
data value: shapes, dtypes and column positions only.
"""

from __future__ import annotations


class DPKernelError(Exception):
    """Base class of every error that dpkernel raises on purpose."""


class ParameterError(DPKernelError, ValueError):
    """A parameter is outside the values it may take."""


class DataError(DPKernelError, ValueError):
    """The data can't be used as they are. Nothing was spent, unless the text says otherwise."""


class DataTypeError(DataError, TypeError):
    """An entry of the data has a type that can't be used, such as a dict or a date."""


class AssumptionError(DPKernelError, ValueError):
    """A mechanism rests on an assumption that the user has not signed."""


class NoiseError(DPKernelError, RuntimeError):
    """Noise was asked for in a way that no recorded spend covers."""


class LedgerError(DPKernelError, RuntimeError):
    """The ledger can't do what was asked of it."""


class BudgetExceededError(LedgerError):
    """The spend does not fit under the ledger's ceiling. Nothing was spent."""


class CuratorError(DPKernelError, RuntimeError):
    """A curator can't answer, or its file can't be read. Nothing was answered."""


class CertificateError(DPKernelError, ValueError):
    """A certificate is malformed, or its parameters do not support its claim."""


class ModelFileError(CertificateError):
    """A model file is damaged, was changed, or is none."""


class PrivacyWarning(UserWarning):
    """Something the user does is allowed but weakens what is protected."""


def parameter_message(owner: str, name: str, must_be: str, got: object, advice: str = "") -> str:
    """Return the one sentence form: what, got, do.

    Examples
    --------
    >>> parameter_message("Budget", "epsilon", "a float in the range (0, inf)", float("nan"))
    "The 'epsilon' parameter of Budget must be a float in the range (0, inf). Got nan."
    """
    text = f"The '{name}' parameter of {owner} must be {must_be}. Got {got!r}."
    return f"{text} {advice}" if advice else text
