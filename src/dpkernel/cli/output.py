"""Common options of all commands, output for people or programs, errors and exit codes.

The exit codes are:

0    done
1    refused, or the verification failed: the error says why in one sentence
2    the command line itself is wrong
130  interrupted (Ctrl-C); the message says whether anything was spent
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from dpkernel.cli.flags import Command
from dpkernel.data.table_files.readers import Tell
from dpkernel.foundations.errors import DPKernelError
from dpkernel.foundations.types import JSON

REFUSED = 1
INTERRUPTED = 130

AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error. It may quote data.")
]
NOTHING_SPENT = "Nothing was spent."
# characters that move the cursor, colour the terminal or reverse the order of letters
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHARED = {"as_json": AsJSON, "quiet": Quiet, "debug": Debug}


class Refusal(DPKernelError):  # noqa: N818 (a refusal, not an error of the program)
    """Raised if a command can't do what it was asked to. Its text is shown to the user."""


def visible(text: str) -> str:
    """Return a text whose control characters are escaped, so that a terminal does not obey them."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def one_line(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _wrapped(text: str, console: Console) -> str:
    """Return a text with lines that end between words on a terminal, and else as it is."""
    if not console.is_terminal:
        return text
    wrap = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap(line, max(console.width, 40)) for line in text.splitlines())


class _Console(Console):
    """A console that lets the command decide what to do if the reader of a pipe has gone away."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass
class Output:
    """Shows the results, progress and errors of a command."""

    as_json: bool = False
    quiet: bool = False
    debug: bool = False
    on_interrupt: Callable[[], str] = field(default=lambda: NOTHING_SPENT)

    def __post_init__(self) -> None:
        self._out = _Console(highlight=False, soft_wrap=True)
        self._err = _Console(stderr=True, highlight=False, soft_wrap=True)

    @property
    def live(self) -> bool:
        """Whether progress is shown, which is only the case on a terminal."""
        return not self.quiet and not self.as_json and self._err.is_terminal

    @property
    def narrow(self) -> bool:
        """Whether the output has fewer than 80 columns, so that tables leave out what is not needed."""
        return self._out.width < 80

    def say(self, text: str = "") -> None:
        """Print a line for people."""
        if not self.as_json and not self.quiet:
            self._out.print(_wrapped(visible(text), self._out), markup=False)

    def explain(self, text: str) -> None:
        """Print lines that start with a word of at most 12 letters, wrapped beside that word.

        They are wrapped on a terminal only, so that a program finds each in one line.
        """
        width = max(self._out.width, 40) if self._out.is_terminal else sys.maxsize
        for line in text.splitlines():
            self.say(textwrap.fill(line, width, subsequent_indent=" " * 13) or "")

    def show(self, table: Any) -> None:
        """Print a rich table for people."""
        if not self.as_json and not self.quiet:
            self._out.print(table)

    def raw(self, text: str) -> None:
        """Write text that is the result itself."""
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()

    def result(self, data: JSON) -> None:
        """Print the result for programs (``--json``). People have already read it in words."""
        if self.as_json:
            self.raw(json.dumps({"ok": True, **data}, indent=2, allow_nan=False) + "\n")

    def note(self, text: str) -> None:
        """Print a line to standard error, beside the results."""
        if not self.quiet:
            self._err.print(_wrapped(visible(text), self._err), markup=False)

    @contextmanager
    def parts(self, what: str) -> Iterator[None]:
        """Show which part of a computation runs, on a terminal only, with the time that is left."""
        from dpkernel.estimators.progress import Mute, heard

        with self.progress(what) as tell:

            class Bar(Mute):
                def tell(self, share: float, text: str, *, ended: bool) -> None:
                    tell(share)

            with heard(Bar()):
                yield

    @contextmanager
    def progress(self, what: str, *, measured: bool = True) -> Iterator[Tell]:
        """Show a progress bar or a spinner, on a terminal only.

        Yields a function that takes the finished share, from 0 to 1.
        """
        if not self.live:
            yield lambda share: None
            return
        from dpkernel.estimators.progress import columns

        name, *rest = (
            columns() if measured else (columns()[0], SpinnerColumn(), TimeElapsedColumn())
        )
        # a result that goes to a file or a pipe must not pass through the console of the bar
        shared = sys.stdout.isatty()
        with Progress(
            name, *rest, console=self._err, transient=True, redirect_stdout=shared
        ) as bar:
            task = bar.add_task(one_line(what), total=1.0 if measured else None)
            yield lambda share: bar.update(task, completed=share)

    def fail(self, text: str, code: int = REFUSED, **more: Any) -> NoReturn:
        """Print what is wrong and end the command."""
        if self.debug and sys.exc_info()[0] is not None:
            self._err.print(visible(traceback.format_exc()), markup=False)
        if self.as_json:
            self.raw(json.dumps({"ok": False, "error": text, **more}, indent=2) + "\n")
        self._err.print(_wrapped(f"error: {visible(text)}", self._err), markup=False)
        raise typer.Exit(code)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an exception of a command into one sentence and an exit code."""
        if getattr(signal.getsignal(signal.SIGINT), "while_loading", False):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        before = signal.getsignal(signal.SIGTERM)
        if before is signal.SIG_DFL or getattr(before, "while_loading", False):
            with contextlib.suppress(ValueError):  # only the main thread may set it
                signal.signal(signal.SIGTERM, _stop)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = self._warn
                yield
        except DPKernelError as error:
            self.fail(self._with_spend(str(error)))
        except KeyboardInterrupt:
            self.fail(f"Interrupted. {self.on_interrupt()}", INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away
            raise typer.Exit(0) from None
        except OSError as error:
            name = os.path.basename(str(error.filename or "")) or "A file"
            reason = error.strerror or type(error).__name__
            what = f"{name} can't be read or written: {reason}."
            if isinstance(error, FileNotFoundError) and error.filename:
                what = f"There is no file or folder named {name}."
            self.fail(f"{what} {self.on_interrupt()}")
        except MemoryError:
            self.fail(f"There is not enough memory. {self.on_interrupt()}")
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:  # its text may quote the data
            if isinstance(error.__cause__, KeyboardInterrupt):  # in an import, Python wraps it
                self.fail(f"Interrupted. {self.on_interrupt()}", INTERRUPTED)
            self.fail(
                f"Something unexpected happened ({type(error).__name__}). This is a fault of dpkernel."
                f" {self.on_interrupt()} --debug shows where it happened, and may quote the data."
            )

    def _with_spend(self, text: str) -> str:
        """Return what is wrong, and what was spent unless that is nothing or already said."""
        told = self.on_interrupt()
        return text if told == NOTHING_SPENT or "budget is spent" in text else f"{text} {told}"

    def _warn(self, message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, UserWarning) and category.__module__.startswith("dpkernel"):
            self.note(f"warning: {message}")


def _stop(number: int, frame: Any) -> NoReturn:
    """End a command that the system asks to end in the same way as Ctrl-C does."""
    raise KeyboardInterrupt


def command(app: typer.Typer, name: str | None = None, **options: Any) -> Callable[..., Any]:
    """Register a function (output, parameters...) as a command with --json, --quiet and --debug."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in list(inspect.signature(function).parameters.values())[1:]
        ]
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for key, kind in _SHARED.items()
        ]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            output = Output(**{key: values.pop(key) for key in _SHARED})
            with output.guarded():
                function(output, **values)

        del run.__wrapped__
        kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        run.__signature__ = inspect.Signature([*kept, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*kept, *shared]}
        # a paragraph is wrapped to the terminal, and not broken where the source is, too
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        app.command(name, cls=Command, help=text, **options)(run)
        return function

    return register
