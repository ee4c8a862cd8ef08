"""``python -m dpkernel`` is the command line."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C prints one line, even while the program is loading."""
    try:
        from dpkernel.cli import app
    except KeyboardInterrupt:
        sys.exit(_interrupted())
    app(prog_name="dpkernel")


def _interrupted() -> int:
    sys.stderr.write("error: Interrupted. Nothing was spent.\n")
    return 130


if __name__ == "__main__":
    main()
