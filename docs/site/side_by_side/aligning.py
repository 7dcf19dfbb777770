"""Alignment of the three columns' statements: corresponding statements share a row."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import combinations, product

FRAMEWORK = re.compile(r"\b(?:np|jnp|torch|jax\.nn|jax|nnx|nn|self)\.")
"""A pattern for `self` and framework names in code, which `likeness` ignores."""

Row = tuple[int | None, ...]
"""The number of each column's statement in a row; None if a column has no statement in this row."""

MOVES = [move for move in product((0, 1), repeat=3) if any(move)]


def aligned(columns: Sequence[Sequence[str]]) -> list[Row]:
    """Return the rows in which the three columns' statements correspond best; each column keeps its order.

    The score of a row is the sum of likeness − ½ over its pairs of statements. The returned rows have the largest total
    score.
    """
    return list(_aligned(tuple(map(tuple, columns))))


@cache
def _aligned(columns: tuple[tuple[str, ...], ...]) -> list[Row]:
    gains = {
        (one, other): [[likeness(*sorted((x, y))) - 0.5 for y in columns[other]] for x in columns[one]]
        for one, other in combinations(range(3), 2)
    }
    moves = [(move, [(pair, gains[pair]) for pair in gains if move[pair[0]] and move[pair[1]]]) for move in MOVES]
    sizes = [len(column) for column in columns]
    best: dict[tuple[int, ...], tuple[float, tuple[int, ...] | None]] = {(0, 0, 0): (0.0, None)}
    for place in product(*(range(size + 1) for size in sizes)):
        options = [best[place]] if place in best else []
        for move, pairs in moves:
            before = (place[0] - move[0], place[1] - move[1], place[2] - move[2])
            if min(before) >= 0:
                gain = sum(table[before[one]][before[other]] for (one, other), table in pairs)
                options.append((best[before][0] + gain, move))
        best[place] = max(options, key=lambda option: option[0])
    return _walked_back(best, tuple(sizes))


def _walked_back(
    best: dict[tuple[int, ...], tuple[float, tuple[int, ...] | None]], place: tuple[int, ...]
) -> list[Row]:
    rows: list[Row] = []
    while move := best[place][1]:
        place = tuple(index - step for index, step in zip(place, move, strict=True))
        rows.append(tuple(index if step else None for index, step in zip(place, move, strict=True)))
    return rows[::-1]


@cache
def likeness(one: str, other: str) -> float:
    """Return the similarity of two statements, from 0 to 1: the mean of the similarity of their assigned names and of
    all their words."""
    return (_ratio(head(one), head(other)) + _ratio(one, other)) / 2


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, _words(one), _words(other), autojunk=False).ratio()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", FRAMEWORK.sub("", text))


def head(text: str) -> str:
    """Return the names that a statement assigns to, without indices; without an assignment, return its first word."""
    target = re.match(r"(?:self\.)?([\w, .*]+?)(?:: [^=]+|\[.*\])? = ", text)
    return target[1].replace(",", "") if target else text.split(maxsplit=1)[0]
