"""Arrays as HTML: rows of numbers, and heat maps as SVG."""

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

MOST_ROWS, MOST_COLUMNS, MOST_HEADS = 6, 6, 2
"""The largest number of rows, columns and heads that a page shows of an array."""

LEVELS = 9
"""The largest shade of a heat map; the smallest value has the shade 0."""


def figure(value: Any) -> str:
    """Return a value as HTML: the rows of an array, with a heat map if the array has heads or is a mask."""
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", [""] * len(value))
        shown = [(name, part) for name, part in zip(names, value, strict=True) if shows(part)]
        return "".join(f"<p><code>{name}</code></p>{figure(part)}" if name else figure(part) for name, part in shown)
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        is_number = isinstance(value, bool | int | float | np.number | np.ndarray)
        return f"<pre>{escape(_number(value))}</pre>" if is_number else ""
    if not value.size:
        return f'<p class="shape">no element, shape {value.shape}</p>'
    shape = " × ".join(map(str, value.shape))
    parts = [f'<div class="slice">{map_}<pre>{rows}</pre></div>' for map_, rows in _slices(value)]
    return f'<p class="shape">{shape}, {value.dtype}</p><div class="slices">{"".join(parts)}</div>'


def shows(value: Any) -> bool:
    """Return whether pages show a value: an array, a float, or a tuple or list with an array in it."""
    if isinstance(value, tuple | list):
        return any(isinstance(part, np.ndarray) for part in value)
    return isinstance(value, np.ndarray | float | np.floating)


def heat_map(matrix: np.ndarray, alternative: str) -> str:
    """Return a heat map of a matrix as SVG; larger elements are darker squares."""
    finite = np.where(np.isfinite(matrix), matrix, np.nan).astype(float)
    low, span = np.nanmin(finite, initial=np.inf), np.nanmax(finite, initial=-np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.nan_to_num((finite - low) / (span - low), nan=0.0)
    levels = np.rint(shares * (LEVELS - 1)).astype(int)
    squares = []
    for level in np.unique(levels):
        path = "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(levels == level))
        squares.append(f'<path class="h{level}" d="{path}"/>')
    rows, columns = matrix.shape
    name = escape(alternative, quote=True)
    size = f'viewBox="0 0 {columns} {rows}" style="width:{min(columns, 24) * 0.9:.1f}em"'
    return f'<svg class="heat" {size} role="img" aria-label="{name}">{"".join(squares)}</svg>'


def _slices(value: np.ndarray) -> Iterator[tuple[str, str]]:
    heads = value.reshape(-1, *value.shape[-2:]) if value.ndim > 1 else value[None, None]
    has_map = value.dtype == bool or value.ndim == 4
    for index, matrix in enumerate(heads[:MOST_HEADS]):
        drawn = has_map and matrix.size > 1
        yield heat_map(matrix, f"Matrix {index} as a heat map") if drawn else "", rows(matrix)


def rows(matrix: np.ndarray) -> str:
    """Return the first rows and columns of a matrix as lines of numbers; `…` replaces all other elements."""
    cells = [[_number(value) for value in row] for row in matrix[:MOST_ROWS, :MOST_COLUMNS]]
    width = max(len(cell) for row in cells for cell in row)
    more = " …" if matrix.shape[1] > MOST_COLUMNS else ""
    lines = [" ".join(cell.rjust(width) for cell in row) + more for row in cells]
    return "\n".join(lines + ["…"] * (len(matrix) > MOST_ROWS))


def _number(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "1" if value else "·"
    if isinstance(value, int | np.integer):
        return str(value)
    return f"{float(np.real(value)):.3g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
