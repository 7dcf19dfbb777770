"""The command `transparity`, also as `python -m transparity_conformance`; it names a missing dependency."""

from __future__ import annotations

import sys

BAD_INPUT = 2


def main() -> None:
    """Run the command, or tell how to install what it needs."""
    try:
        from transparity_conformance.cli import main as run
    except ModuleNotFoundError as error:
        wants = 'python -m pip install "transparity[conformance]"'
        sys.stderr.write(f"The command needs {error.name}, which is not installed: {wants}.\n")
        sys.exit(BAD_INPUT)
    run()


if __name__ == "__main__":
    main()
