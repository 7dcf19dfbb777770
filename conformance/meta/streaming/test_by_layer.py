"""Test that the notes have the published measurements of large models."""

from __future__ import annotations

import json

from meta.page import NOTES, with_part
from meta.streaming import by_layer


def test_the_notes_are_what_the_published_measurements_say() -> None:
    text = NOTES.read_text(encoding="utf-8")
    found = json.loads(by_layer.FILE.read_text(encoding="utf-8"))
    assert with_part(text, "by layer", by_layer.page(found)) == text, "write conformance/meta/NOTES.md again"
