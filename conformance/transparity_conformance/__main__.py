"""The command `transparity`, which `python -m transparity_conformance` also runs."""

import sys


def main() -> None:
    """Run the command. If the user presses Ctrl-C during the imports, print a message and exit with code 2."""
    try:
        from transparity_conformance.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted before a verdict was reached.\n")
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
