"""The results files in benchmarks/results: a file per machine, with the newest race of each workload.

`python -m benchmarks.race.results` writes the tables and plots of the documentation. `python -m benchmarks.race.results
FILE` draws all plots of a results file.
"""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import cores, cuda, overridden_kernels, processor, variables, versions
from benchmarks.race.race import Conditions
from benchmarks.race.rows import Row
from benchmarks.race.table import as_markdown

from meta.page import with_part

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
PAGES = [ROOT / "README.md", ROOT / "benchmarks/NOTES.md", *sorted((ROOT / "docs").rglob("*.md"))]

TAKEN = "one interleaved run for each workload"


def surroundings(conditions: Conditions) -> dict[str, Any]:
    """Return everything that timings depend on: the conditions of the race, and the environment."""
    return {
        "cores": cores(),
        "rounds": conditions.rounds,
        "device": conditions.device,
        "processor": processor(),
        "python": platform.python_version(),
        "environment": variables(),
        "kernels not held to": overridden_kernels(),
        "memory": conditions.memory,
        "versions": versions(),
    } | cuda(conditions.device)


def machine_of(conditions: Mapping[str, Any]) -> str:
    return conditions.get("device name") or conditions["processor"]


def why_not_kept(path: Path, conditions: Mapping[str, Any]) -> str | None:
    here = machine_of(conditions)
    before = json.loads(path.read_text(encoding="utf-8"))["machine"] if path.exists() else here
    return None if before == here else f"{path} has results of {before}, and this machine is {here}; name another file"


def keep(path: Path, rows: Sequence[Row], conditions: Mapping[str, Any], absent: Sequence[str]) -> None:
    """Write a race's rows into a results file, in place of older rows of the same workloads."""
    raced = {row.workload for row in rows}
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    for run in runs:
        run["rows"] = [row for row in run["rows"] if row["workload"] not in raced]
    runs.append({"taken": TAKEN, "conditions": conditions, "absent": absent, "rows": [row.as_dict() for row in rows]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(machine_of(conditions), [run for run in runs if run["rows"]]), encoding="utf-8")


def as_json(machine: str, runs: Sequence[Mapping[str, Any]]) -> str:
    written = []
    for run in runs:
        head = json.dumps({name: value for name, value in run.items() if name != "rows"})
        written.append(f'{head[:-1]}, "rows": [\n  ' + ",\n  ".join(map(json.dumps, run["rows"])) + "\n ]}")
    return f'{{"machine": {json.dumps(machine)}, "runs": [\n ' + ",\n ".join(written) + "\n]}\n"


def kept_rows(path: Path) -> list[Row]:
    return [Row.from_dict(row) for run in json.loads(path.read_text(encoding="utf-8"))["runs"] for row in run["rows"]]


def machines() -> list[Path]:
    return [path for path in sorted(RESULTS.glob("*.json")) if '"runs"' in path.read_text(encoding="utf-8")]


def tabulated(page: str) -> str:
    """Return a page of the documentation with new tables for all machines that the page's markers name."""
    for path in machines():
        if f"<!-- race {path.stem}: " in page:
            page = with_part(page, f"race {path.stem}", as_markdown(kept_rows(path)))
    return page


def main(paths: Sequence[str]) -> None:
    """Draw all plots of the results files `paths`; without paths, write the tables and plots of the documentation."""
    from benchmarks.race.plots import save

    for path in map(Path, paths):
        save(kept_rows(path), path)
    if not paths:
        shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
        for path in machines():
            save(kept_rows(path), path, lambda picture: picture.name in shown)
        for page in PAGES:
            page.write_text(tabulated(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
