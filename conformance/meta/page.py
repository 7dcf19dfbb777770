"""Write tables of measurements into pages and notes, between two comments."""

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
NOTES = Path(__file__).with_name("NOTES.md")


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = "|".join("--:" if column in right else "---" for column in range(len(heads)))
    body = (f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
    return "\n".join([f"| {' | '.join(heads)} |", f"|{rule}|", *body])


def with_part(page: str, name: str, text: str) -> str:
    """Replace the text between the comments `NAME: written by …` and `end of NAME`."""
    pattern = rf"(?s)(<!-- {name}: written by [^\n]+ -->\n).*?(<!-- end of {name} -->)"
    if (places := len(re.findall(pattern, page))) != 1:
        raise ValueError(f"The page has {places} comments that begin the part {name!r}; expected one.")
    return re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page)


def write_part(path: Path, name: str, text: str) -> None:
    path.write_text(with_part(path.read_text(encoding="utf-8"), name, text), encoding="utf-8")
