"""Break long lines of Python at commas, `and`, `else`, and brackets."""

import re
from itertools import accumulate, pairwise

SEPARATOR = re.compile(r" (?:else|and) |(?<=,) ")
"""Matches the text outside brackets after or before which a line may be broken."""


def in_one_line(text: str) -> str:
    """Join Python code into one line, and remove trailing commas and the spaces inside brackets."""
    text = " ".join(line.strip() for line in text.splitlines())
    return re.sub(r",? ([)\]}])", r"\1", re.sub(r"([(\[{]) ", r"\1", text))


def broken(line: str, indent: str = "", *, width: int) -> list[str]:
    """Return a short line unchanged; break a long line outside its brackets, or within the longest brackets."""
    room, deeper = width - len(indent), indent + "    "
    if len(line) <= room:
        return [indent + line]
    places = [index for index in outside_brackets(line) if line.find(" = ") < index <= room]
    breaks = [index for index in places if SEPARATOR.match(line, index)]
    if breaks:
        return [indent + line[: breaks[-1]], *broken(line[breaks[-1] + 1 :], deeper, width=width)]
    begin, end = longest_brackets(line, room)
    if begin < 0 or len(deeper) > width // 2:
        return [indent + line]
    *inner, last = filled(line[begin + 1 : end], deeper, width=width) or [""]
    fits = len(last + line[end:]) <= width
    return [indent + line[: begin + 1], *inner, *([last + line[end:]] if fits else [last, indent + line[end:]])]


def outside_brackets(line: str) -> list[int]:
    depths = accumulate((character in "([{") - (character in ")]}") for character in line)
    return [index for index, depth in enumerate(depths) if depth == 0]


def longest_brackets(line: str, room: int) -> tuple[int, int]:
    """Return the start and end of the longest brackets that open in the first `room` characters, or (-1, -1)."""
    opened, pairs = [], [(-1, -1)]
    for index, character in enumerate(line):
        if character in "([{":
            opened.append(index)
        elif character in ")]}":
            pairs.append((opened.pop(), index))
    return max((pair for pair in pairs if pair[0] < room), key=lambda pair: pair[1] - pair[0])


def filled(inner: str, indent: str, *, width: int) -> list[str]:
    cuts = [0, *(index + 1 for index in outside_brackets(inner) if inner[index] == ","), len(inner)]
    lines = [""]
    for item in (inner[begin:end].strip() for begin, end in pairwise(cuts)):
        longer = f"{lines[-1]} {item}".strip()
        lines = [*lines[:-1], longer] if len(indent + longer) <= width else [*lines, item]
    return [part for line in lines if line for part in broken(line, indent, width=width)]
