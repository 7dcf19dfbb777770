"""Write docs/exam.md, docs/exam-bugs.md, docs/exam.png and the README's numbers from docs/exam.json: `python -m
meta.exam.page`.

docs/exam.json has the published results by bug: the latest judgment, and the judgment before fixes of the checker. The
judgment before fixes is null if we did not keep it.

`--answers FILE` first merges answers of `python -m meta.measure --pool exam --json FILE` into docs/exam.json.
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meta.exam.bug import exam, twins
from meta.exam.rules import RULES, rule_scores, scores
from meta.page import DOCS, table, with_part
from meta.pool.judge import judged
from meta.trial import Answer, Share
from transparity_conformance.report.causes import meanings

FILE = DOCS / "exam.json"
README = DOCS.parent / "README.md"
PAGE, BUGS, PLOT = FILE.with_suffix(".md"), DOCS / "exam-bugs.md", FILE.with_suffix(".png")

TOLD = ("story", "source", "group", "file", "hidden", "control")
"""The fields of a row that come from the bug's table and are therefore not stored."""

JUDGED = ("detected", "placed", "named", "falsely", "line")

Row = Mapping[str, Any]
Rows = Mapping[str, Row]


def read(file: Path = FILE) -> dict[str, Row]:
    found: dict[str, Row] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: told(name) | dict(row) for name, row in found.items() if name in exam()}


def told(name: str) -> dict[str, Any]:
    return {key: getattr(exam()[name], key) for key in TOLD}


def merged(rows: Rows, answers: Mapping[str, Answer]) -> dict[str, Row]:
    """Merge new answers into the rows; a known bug keeps its first judgment, and a removed bug is dropped."""
    bugs = exam()
    found = {name: row for name, row in rows.items() if name in bugs}
    for name, given in answers.items():
        now = judged(bugs[name], given, answers.get(twins()[name]))
        judgment = {key: getattr(now, key) for key in JUDGED}
        first = rows[name]["first"] if name in rows else judgment
        others = {"rules": list(now.rules), "seconds": now.seconds}
        found[name] = {**told(name), **others, **judgment, "says": now.says, "first": first}
    return {name: found[name] for name in bugs if name in found}


def answered(file: Path) -> dict[str, Answer]:
    rows = {row["trial"]: row["answer"] for row in json.loads(file.read_text(encoding="utf-8"))}
    return {name: given for name, given in rows.items() if "missing" not in given}


def write(rows: Rows, file: Path = FILE) -> None:
    measured = {name: {key: row[key] for key in row if key not in TOLD} for name, row in rows.items()}
    lines = (f" {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in measured.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def judgments(rows: Rows, *, first: bool = False) -> list[Row]:
    return [{**row, **row["first"]} for row in rows.values() if row["first"]] if first else [*rows.values()]


def bugs_of(rows: Rows) -> Rows:
    return {name: row for name, row in rows.items() if not row["control"]}


def percent(share: Share) -> str:
    return f"{share.right} of {share.of} ({share.right / max(share.of, 1):.0%})".replace("%)", "\u00a0%)")


def compared(rows: Rows) -> list[tuple[str, Share, Share]]:
    found = judgments(rows)
    own = {share.title: share for share in scores(found)}
    alone = own["controls and twins accepted"]
    first = ("transparity check", own["detected"], Share("", alone.of - alone.right, alone.of))
    return [first, *((RULES[name].says, *each) for name, each in rule_scores(found).items())]


def beside_rules(rows: Rows) -> str:
    lines = [[name, percent(found), percent(refused)] for name, found, refused in compared(rows)]
    lines[0][0] = f"**{lines[0][0]}**"
    return table(["rule", "bugs detected", "right ports refused"], lines, (1, 2))


def answers(rows: Rows) -> str:
    both = zip(scores(judgments(rows, first=True)), scores(judgments(rows)), strict=True)
    lines = [
        [now.title, percent(then), percent(now), f"{now.target:.0%}".replace("%", " %") if now.target else ""]
        for then, now in both
    ]
    return table(["measure", "before fixes", "current", "wanted"], lines, (1, 2, 3))


def by_where(rows: Rows) -> str:
    places = dict.fromkeys(row["hidden"] for row in bugs_of(rows).values())
    lines = []
    for place in sorted(places, key=lambda place: (place != "any", place)):
        found = [row for row in bugs_of(rows).values() if row["hidden"] == place]
        best = max(sum(name in row["rules"] for row in found) for name in RULES if not name.startswith("torch"))
        seen = sum(bool(row["detected"]) for row in found)
        lines.append([place, str(len(found)), str(seen), str(best)])
    return table(["where the bug shows", "bugs", "transparity", "best rule¹"], lines, (1, 2, 3))


def _kinds(row: Row) -> dict[str, bool]:
    if row["control"]:
        return {"Right code refused": bool(row["detected"])}
    is_unnamed = bool(row["detected"]) and not row["named"] and not row["falsely"]
    return {
        "Not detected": not row["detected"],
        "Another cause named": bool(row["falsely"]),
        "Detected, not named": is_unnamed,
        "Another line": row["line"] is False,
        "Another part": row["placed"] is False,
    }


def missed(rows: Rows) -> str:
    """Return Markdown: the number of answers with each flaw, a table of these answers, and a list of the bugs without
    an answer."""
    order = [*_kinds({**dict.fromkeys(JUDGED), "control": True})]
    order += _kinds({**dict.fromkeys(JUDGED), "control": False})
    found = [(title, name, row) for name, row in rows.items() for title, broken in _kinds(row).items() if broken]
    found.sort(key=lambda each: order.index(each[0]))
    lines = [[title, f"`{name}`", answer(row["says"])] for title, name, row in found]
    counted = "; ".join(f"{title.lower()}: {sum(title == each[0] for each in found)}" for title in order)
    parts = [f"{counted[:1].upper()}{counted[1:]}.", table(["result", "bug", "the answer"], lines)]
    if waiting := [f"`{name}`" for name in exam() if name not in rows]:
        parts.append(f"**Bugs without an answer yet: {len(waiting)}**, left out of all figures: {', '.join(waiting)}.")
    return "\n\n".join(parts)


def answer(says: str) -> str:
    place, _, cause = says.rpartition(": ")
    return f"{place}: [{meanings()[cause].title}](causes/{cause}.md)" if cause in meanings() else says


MARKS = {True: "yes", False: "no", None: "–"}


def every_bug(rows: Rows) -> str:
    lines = []
    for name, row in rows.items():
        thread = re.sub(r"#(\d+)$", r"/issues/\1", row["source"])
        story = f"[{row['story']}](https://{thread})" if thread else row["story"]
        way = row["detected"] or ("–" if row["control"] else "no")
        named = "–" if row["control"] else MARKS[row["named"]]
        shows = "control" if row["control"] else row["hidden"]
        lines.append(
            [f"`{name}`", story, shows, way, named, MARKS[row["line"]], f"{len(row['rules'])} of {len(RULES)}"]
        )
    return table(["id", "what is wrong", "where it shows", "found by", "named", "line", "rules that refuse"], lines)


PARTS: dict[Path, dict[str, Callable[[Rows], str]]] = {
    PAGE: {"beside rules": beside_rules, "answers": answers, "by where": by_where},
    BUGS: {"missed": missed, "every bug": every_bug},
}


def rendered(page: Path, text: str, rows: Rows) -> str:
    for name, render in PARTS[page].items():
        text = with_part(text, name, render(rows))
    return text


def in_readme(text: str, rows: Rows) -> str:
    """Replace the numbers in the README's sentences about the exam."""
    own = {share.title: share for share in scores(judgments(rows))}
    detected, named, accepted = own["detected"], own["named"], own["controls and twins accepted"]
    numbers = [detected.of, detected.right, detected.of, named.right, accepted.of - accepted.right, accepted.of]
    begin = text.index("tests the checker on")
    parts = re.split(r"\d+", text[begin:], maxsplit=len(numbers))
    return text[:begin] + parts[0] + "".join(f"{number}{part}" for number, part in zip(numbers, parts[1:], strict=True))


def plot(rows: Rows, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names, found, refused = zip(*compared(rows)[::-1], strict=True)
    bugs, ports = found[-1].of, refused[-1].of
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, width_ratios=(3, 2))
    for axes, shares, title, colour in (
        (left, found, f"of {bugs} bugs, detected", "tab:blue"),
        (right, refused, f"of {ports} right ports, refused", "tab:red"),
    ):
        drawn = axes.barh(names, [100 * share.right / share.of for share in shares], color=colour, height=0.65)
        axes.bar_label(drawn, [str(share.right) for share in shares], padding=3)
        axes.set(xlim=(0, 112), title=title, xlabel="%")
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the pages and the picture of the exam from docs/exam.json.")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="merge the answers in this file")
    options = parser.parse_args(arguments)
    rows: Rows = read()
    rows = merged(rows, answered(options.answers)) if options.answers else rows
    write(rows)
    for page in PARTS:
        page.write_text(rendered(page, page.read_text(encoding="utf-8"), rows), encoding="utf-8")
    README.write_text(in_readme(README.read_text(encoding="utf-8"), rows), encoding="utf-8")
    plot(rows, PLOT)


if __name__ == "__main__":
    main()
