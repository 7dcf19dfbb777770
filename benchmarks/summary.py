"""`python -m benchmarks.summary RACE.json [MORE.json …]`: reduce results of races to small files.

The medians, quartiles, ratios and conditions are kept, one row a line, without the seconds of the rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ROW = ("workload", "candidate", "ours", "rounds", "seconds", "share", "ratio", "best_peer", "conformity", "failed")

DIGITS = 6


def summary(race: Mapping[str, Any], taken: str) -> dict[str, Any]:
    """The conditions and the rows of a race; `taken` describes how its figures came about."""
    rows = [{name: rounded(row[name]) for name in ROW} | {"kind": row["kinds"][0]} for row in race["standings"]]
    return {"taken": taken, "conditions": race["conditions"], "absent": race["absent"], "standings": rows}


def rounded(value: Any) -> Any:
    """Numbers to `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def as_json(found: Mapping[str, Any]) -> str:
    """JSON with one line for each row."""
    head = json.dumps({name: value for name, value in found.items() if name != "standings"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in found["standings"])
    return f'{head[:-2]},\n "standings": [\n  {rows}\n ]\n}}\n'


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of our columns as a Markdown table, with the ratio to the best peer of each one's kind."""
    heading = ["| workload | column | ms | of the limit | as fast as the best peer |", "|---|---|--:|--:|:--|"]
    return "\n".join([*heading, *_lines(rows)])


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    before = None
    for row in rows:
        if row["ours"] and row["seconds"]:
            name = "" if row["workload"] == before else f"`{row['workload']}`"
            ratio = f"{row['ratio']['middle']:.2f} × {row['best_peer']}" if row["ratio"] else ""
            share = f"{row['share']['middle']:.0%}".replace("%", " %") if row["share"] else ""
            time = milliseconds(row["seconds"]["middle"])
            yield f"| {name} | {row['candidate']} | {time} | {share} | {ratio} |"
            before = row["workload"]


def milliseconds(seconds: float) -> str:
    """To the millisecond, and below ten of them with two digits more."""
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.2f}"


def main(
    races: Annotated[list[Path], typer.Argument(help="JSON files that a race wrote.")],
    output: Annotated[Path, typer.Option(help="The folder of the summaries, which keep their names.")],
    taken: Annotated[str, typer.Option(help="How the figures were taken.")] = "one interleaved run for each workload",
) -> None:
    """Write a summary of each race, and print its Markdown table."""
    for path in races:
        found = summary(json.loads(path.read_text()), taken)
        (output / path.name).write_text(as_json(found))
        typer.echo(as_markdown(found["standings"]))


if __name__ == "__main__":
    typer.run(main)
