"""Print the notes of a release, which are a section of CHANGELOG.md. `python docs/release_notes.py [VERSION]`"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"(?m)^## (\d\S*)")


def notes(changelog: str, name: str) -> str:
    """Return a version's section of CHANGELOG.md without its heading. Raise `ValueError` if the section is empty."""
    found = re.search(rf"(?ms)^## {re.escape(name)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if not found or not found[1].strip():
        raise ValueError(f"The section {name!r} of CHANGELOG.md is missing or empty; write it.")
    return found[1].strip() + "\n"


if __name__ == "__main__":
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = VERSION.findall(changes)[0]
    sys.stdout.write(notes(changes, sys.argv[1] if sys.argv[1:] else newest))
