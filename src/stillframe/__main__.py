"""``stillframe``, and ``python -m stillframe``: the command line."""

import sys


def main() -> None:
    """Run the command line and end the program with an exit code.

    Ctrl-C ends it without a traceback also while the commands are being loaded.
    """
    try:
        from stillframe.cli.app import app  # noqa: PLC0415 - see above

        app(prog_name="stillframe")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
