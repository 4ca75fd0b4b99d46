"""`cotenant`, and `python -m cotenant` where that program is not on the PATH."""

import sys


def main() -> None:
    """Runs the command line; an interrupt while it still loads ends it as a later one does."""
    try:
        from cotenant.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
