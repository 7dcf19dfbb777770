"""The command `transparity`, also as `python -m transparity_conformance`."""

from __future__ import annotations

from transparity_conformance.cli import main

if __name__ == "__main__":
    main()
