"""Write the agreement matrix of a conformance run into docs/agreement.md, and its summary into README.md.

    nox -s conformance
    python docs/agreement.py reports/agreement.json

The run's results are kept in docs/agreement.json; tests/project/test_pages.py compares both pages with this file.
"""

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

from meta.page import table, with_part

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs/agreement.json"
TITLES = {"numpy": "NumPy", "pytorch": "PyTorch", "flax": "JAX"}
DTYPES = ("float64", "float32", "bfloat16", "float16")

Run = dict[str, Any]


def condensed(report: Run, date: str) -> Run:
    """Return the part of a run's agreement.json that the pages show."""
    columns = [f"{column['backend']} {column['dtype']}" for column in report["columns"]]
    cells = {claim["id"]: [cell and _cell(cell, claim) for cell in claim["cells"]] for claim in report["claims"]}
    return {
        "date": date,
        "summary": report["summary"],
        "columns": columns,
        "cells": cells,
        "breaks": [[note["says"], note["claims"]] for note in report["document_breaks"]],
        "skipped": report["skipped"],
    }


def _cell(cell: Run, claim: Run) -> list[Any]:
    """Return a cell's text, its share of the tolerance, and its number of comparisons.

    If the cell has fewer cases than the claim, the text ends with both numbers of cases.
    """
    fewer = f" ({cell['cases']} of {claim['cases']})" if cell["cases"] < claim["cases"] else ""
    return [cell["says"] + fewer, float(f"{cell['share']:.2g}"), cell["comparisons"]]


def matrix(run: Run) -> str:
    heads = [TITLES[backend] + " " + dtype for backend, dtype in map(str.split, run["columns"])]
    lines = [f"| claim | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    topic = ""
    for name, cells in run["cells"].items():
        before, _, claim = name.rpartition(".")
        if before != topic:
            topic = before
            lines.append(f"| **{topic}** |" + " |" * len(heads))
        marks = "".join(f"[{number}]" for number, (_, claims) in enumerate(run["breaks"], 1) if name in claims)
        said = [cell[0] if cell else "·" for cell in cells]
        lines.append(f"| {claim.replace('_', ' ')} {marks} | {' | '.join(said)} |".replace("  ", " "))
    notes = [f"{number}. {sentence}" for number, (sentence, _) in enumerate(run["breaks"], 1)]
    skipped = ["Skipped: " + "; ".join(run["skipped"]) + "."] if run["skipped"] else []
    return "\n".join([f"{run['date']}: {run['summary']}.", "", *lines, "", *notes, "", *skipped])


def summary(run: Run) -> str:
    """Return a Markdown table: the largest share of the tolerance and the number of comparisons in each precision."""
    rows = [[dtype, *(_worst(run, f"{backend} {dtype}") for backend in TITLES)] for dtype in DTYPES]
    return table(["precision", *TITLES.values()], rows, (1, 2, 3))


def _worst(run: Run, column: str) -> str:
    if column not in run["columns"]:
        return "–"
    index = run["columns"].index(column)
    cells = [cells[index] for cells in run["cells"].values() if cells[index]]
    return f"{max(cell[1] for cell in cells):.0%} in {sum(cell[2] for cell in cells):,}".replace("%", " %")


PAGES = {"docs/agreement.md": ("matrix", matrix), "README.md": ("summary", summary)}


def main(path: str) -> None:
    run = condensed(json.loads(Path(path).read_text(encoding="utf-8")), dt.date.today().isoformat())
    cells = run["cells"].items()
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in cells)
    others = json.dumps({name: value for name, value in run.items() if name != "cells"}, ensure_ascii=False, indent=1)
    KEPT.write_text(f'{others[:-2]},\n "cells": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
    for page, (name, render) in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(with_part(text, name, render(run)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
