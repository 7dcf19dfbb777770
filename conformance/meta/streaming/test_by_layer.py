"""Test that the page of large models has the published measurements."""

from __future__ import annotations

import json

from meta.page import DOCS, with_part
from meta.streaming import by_layer


def test_the_page_is_what_the_published_measurements_say() -> None:
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    found = json.loads(by_layer.FILE.read_text(encoding="utf-8"))
    assert with_part(text, "by layer", by_layer.page(found)) == text, "write docs/scale.md again"
