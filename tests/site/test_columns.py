import re

import numpy as np
import pytest
from docs.site.figures import figure, heat_map
from docs.site.pages import ROOT, SUBJECTS
from docs.site.side_by_side import columns
from docs.site.side_by_side.aligning import aligned
from docs.site.side_by_side.columns import COLUMNS
from docs.site.side_by_side.probe import COLUMN, LINES, Seen, models, tokens, watched
from docs.site.side_by_side.sources import definitions

from transparity.taps import tap_shapes
from transparity_numpy.mixers.attention import attention_weights


def stems(folder: str) -> set[str]:
    paths = (ROOT / folder).rglob("*.py")
    return {path.relative_to(ROOT / folder).with_suffix("").as_posix() for path in paths if path.stem != "__init__"}


def test_every_file_that_the_three_columns_have_has_a_page() -> None:
    assert set(SUBJECTS) == set.intersection(*map(stems, COLUMNS.values())) - {"port", "harness", "fast/fast_linear"}


def test_rows_have_each_statement_once_in_its_order_and_statements_that_correspond_share_one() -> None:
    one, other, third = ["def f():", "a = 1", "b = 2", "return b"], ["def f():", "b = 2", "return b"], ["return c"]
    assert aligned([one, other, third]) == [(0, 0, None), (1, None, None), (2, 1, None), (3, 2, 0)]
    found = [definitions((ROOT / folder / "mixers/attention.py").read_text()) for folder in COLUMNS.values()]
    texts = [[statement.text for statement in column["attention"].statements] for column in found]
    for row in (rows := aligned(texts)):
        starts = {text[index].split("(")[0] for text, index in zip(texts, row, strict=True) if index is not None}
        assert None not in row and len(starts) == 1
    for index, text in enumerate(texts):
        assert [row[index] for row in rows] == list(range(len(text)))


@pytest.fixture(scope="module")
def seen() -> dict[LINES, Seen]:
    return watched()


def test_every_tap_has_a_value_on_a_page(seen: dict[LINES, Seen]) -> None:
    known = {re.sub(r"^.*\.", "", place.tap) for place in seen.values() if place.tap}
    for config in models().values():
        taps = tap_shapes(config, 1, **{name: value.shape[1] for name, value in tokens(config).items()})
        norms = {"embedding_norm", "self_attention_norm", "feed_forward_norm"}  # one statement taps all norms
        asked = {re.sub(r"^.*\.", "", tap) for tap in taps}
        assert {name for name in asked if not name.endswith(("_norm", "_rotated", "_latent", "_convolved"))} <= known
        assert known & norms


def test_a_value_is_what_the_statement_computed(seen: dict[LINES, Seen]) -> None:
    (weights,) = (place for place in seen.values() if (place.tap or "").endswith(".weights"))
    (scores,) = (place for place in seen.values() if (place.tap or "").endswith(".scores"))
    mask = np.array([[[[True, True, True, True, False]]]])  # the last token of the source is padding
    assert weights.values["weights"].dtype == np.float64
    np.testing.assert_array_equal(weights.values["weights"], attention_weights(scores.values["scores"], mask, -np.inf))
    text = (COLUMN / "mixers/attention.py").read_text(encoding="utf-8").splitlines()
    (line,) = (line for (file, line), place in seen.items() if place is weights and file == "mixers/attention")
    assert text[line - 1].lstrip().startswith("weights = tap(")


def test_a_heat_map_is_darkest_at_the_largest_element() -> None:
    drawn = heat_map(np.array([[0.0, 1.0], [0.5, -np.inf]]), "weights")
    assert re.search(r'class="h8" d="M1 0h1v1h-1z"', drawn)
    assert 'aria-label="weights"' in drawn
    assert "…" in figure(np.zeros((9, 9)))
    assert "svg" in figure(np.eye(3, dtype=bool)) and "svg" not in figure(np.eye(3))


def test_every_claim_that_a_page_shows_exists() -> None:
    for subject in columns.CLAIMS:
        assert "| `" in columns._agreement(subject), subject
    assert "| `positions.alibi_slopes` |" in columns._agreement("positions")
    assert columns._agreement("state/context") == ""
