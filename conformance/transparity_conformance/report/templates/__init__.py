"""Templates of the HTML pages."""

from __future__ import annotations

from importlib import resources

import jinja2

from transparity_conformance.report.formatting import format_share, scientific


def template(name: str) -> jinja2.Template:
    """A page to be filled in; everything put into it is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": format_share, "scientific": scientific}
    return environment.from_string(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"))
