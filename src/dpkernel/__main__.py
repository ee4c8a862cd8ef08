"""``python -m dpkernel`` is the command line."""

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Run the command line. Ctrl-C and SIGTERM print one line, even while the program is loading."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, leave)  # until a command starts; see cli.output
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, leave)
        from dpkernel.cli import app
    except KeyboardInterrupt:
        sys.exit(_interrupted())
    app(prog_name="dpkernel")


def leave(number: int, frame: Any) -> None:
    """End the process at once. An exception could be lost in the middle of an import."""
    os._exit(_interrupted())


leave.while_loading = True  # type: ignore[attr-defined]


def _interrupted() -> int:
    sys.stderr.write("error: Interrupted. Nothing was spent.\n")
    sys.stderr.flush()
    return 130


if __name__ == "__main__":
    main()
