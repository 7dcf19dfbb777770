"""The generated pages of the section "Reference"."""

from __future__ import annotations

from docs.site.reference import api, command_line, model, schema


def pages() -> dict[str, str]:
    return {
        "reference/command-line.md": command_line.page(),
        "reference/report.md": schema.page(),
        **model.pages(),
        "reference/api.md": api.page(),
    }
