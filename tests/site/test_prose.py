"""The rules for prose: sentences of pages, docstrings and messages are short, and use common terms.

    python tests/site/test_prose.py [FILE …]   # print every violation of these files, or of all

A text without violations is not necessarily good.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
APART = re.compile(
    r"docs/(?:faults|family-fields|exam-bugs|causes/.*|documents/.*)\.md$|\.github/|tests/site/test_prose\.py$"
)
"""Files that are not checked: generated pages, templates, and this file."""
QUOTED = "Alice was beginning to get very tired"
"""The start of a quoted text, to which the rules do not apply."""
LONGEST = 25
"""The largest number of words in a sentence, as in CONTRIBUTING.md."""

ENDS = re.compile(r"(?<=[.!?])[)\"”*]*\s+(?=[A-Z0-9`*\"“(\[])")
OPENERS = re.compile(r"(?:Of|Who|Whose|That|Which|What|Nor)\b(?=.*[.:]$)(?!.*\?)|From [\w ]+ on\b")
OLD = re.compile(
    r"\b(?:mend(?:s|ed|ing)?|in front of|as (?:it|they) stands?|those of|that of|so many|is none|exchanged"
    r"|(?:is|are|was|were) (?:told|heard|held to)|nobody|goes on|by now|hears|says so)\b|\b[a-z]+s? alone\b(?=[,.;)])",
    re.IGNORECASE,
)
BRITISH = re.compile(
    r"\b\w*(?:(?:ormal|nitial|uant|ecogn|inim|axim|pecial|ptim)is(?:e|i|ation)|[cC]olour|ehaviour|eighbour|rtefact|udgement"
    r"|entred|abelled|avour|onoured|nalys(?:e[^s]|ing)|ignalling)\w*|\b[Gg]rey\b|\b[Cc]entre\b"
)
NAMES = re.compile(r"\w*_\w*|\b\w+\.\w[\w.]*|\w+\(")
"""American spelling, as in PyTorch's documentation; names of files and code are not judged."""
AGES = re.compile(
    r"\b(?:today(?:'s)?|measured since|was tried|at first sight|no longer|since then|not yet|used to)\b|\bnow\b"
)


def violations(sentence: str, is_manual: bool = False) -> list[str]:
    words = [word for word in sentence.split() if re.search(r"\w", word)]
    found = [f"{len(words)} words"] * (len(words) > LONGEST)
    patterns = [OPENERS.match(sentence), OLD.search(sentence), BRITISH.search(NAMES.sub("", sentence))]
    patterns.append(AGES.search(sentence) if is_manual else None)
    return found + [repr(match[0]) for match in patterns if match]


def plain(text: str) -> str:
    """Remove emphasis and targets of links; replace a piece of code, or a list of such pieces, by one word."""
    text = re.sub(r"`+[^`]+`+", "CODE", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))
    return re.sub(r"CODE(?:,? (?:and |or )?CODE)+", "CODE", " ".join(text.replace("*", "").split()))


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of Markdown, without code, tables, headings and comments."""
    page = re.sub(r"(?ms)^( *)```.*?^\1```$|<!--.*?-->", "", page)
    kept = [re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "\n", line) for line in page.splitlines() if not _is_apart(line)]
    yield from filter(None, (plain(each) for each in re.split(r"\n\s*\n|\n(?=\n)", "\n".join(kept))))


def _is_apart(line: str) -> bool:
    return bool(re.match(r"\s*(?:\||#+ |!\[|<)", line))


def sentences(paragraph: str) -> list[str]:
    return [each for each in ENDS.split(paragraph) if each]


def texts(path: Path) -> Iterator[str]:
    """Yield the docstrings of a file, paragraph by paragraph, and its messages."""
    tree, docs = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (doc := ast.get_docstring(node)):
            docs.add(id(node.body[0].value))  # type: ignore[attr-defined]
            doc = "\n".join(line for line in doc.splitlines() if not _is_apart(line))
            yield from (plain(each) for each in re.split(r"\n\s*\n", doc) if not re.match(r" {4}|\w+:\n", each))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | parts:
            said = node.value
        else:
            continue
        if len(said.split()) > 5 and "\n" not in said:
            yield plain(said)


def strings(value: Any) -> Iterator[str]:
    """Yield the texts in a TOML file, except short texts, which are names."""
    if isinstance(value, str) and len(value.split()) > 5:
        yield plain(value)
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".md": lambda path: paragraphs(path.read_text(encoding="utf-8")),
    ".py": texts,
    ".toml": lambda path: strings(tomllib.loads(path.read_text(encoding="utf-8"))),
}


def found_in(path: Path) -> list[tuple[str, list[str]]]:
    is_manual = path.suffix == ".md" and (path.parent.name == "docs" or path.name == "README.md")
    judged = [(each, violations(each, is_manual)) for text in READERS[path.suffix](path) for each in sentences(text)]
    return [(sentence, broken) for sentence, broken in judged if broken and not sentence.startswith(QUOTED)]


def subjects() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.py", "*/causes.toml", "*/options.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if not APART.match(name)]


def main(paths: list[str]) -> int:
    """Print every violation of the given files, or of all; return 1 if there is one."""
    files = [Path(path) for path in paths] or subjects()
    found = [f"{file}: {', '.join(broken)}: {said}\n" for file in files for said, broken in found_in(file)]
    sys.stdout.writelines(found)
    return bool(found)


def test_each_rule_is_broken_by_a_sentence() -> None:
    assert violations("word " * (LONGEST + 1)) == [f"{LONGEST + 1} words"]
    assert violations("What a run shows is measured.") == ["'What'"]
    assert violations("The defect was mended.") == ["'mended'"]
    assert violations("It is faster now.", is_manual=True) == ["'now'"]
    assert violations("The colour of a neighbour.") == ["'colour'"] and not violations("It calls load_artefact.")
    assert violations("What does a run show?") == violations("The checker compares every activation.") == []


def test_code_tables_and_targets_of_links_are_no_prose() -> None:
    page = "# Of a page\n\n| Of a | table |\n\n```sh\nOf code\n```\n\n- One [link](Of). `Of` two.\n- Three\n  lines.\n"
    assert [each for text in paragraphs(page) for each in sentences(text)] == ["One link.", "CODE two.", "Three lines."]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
