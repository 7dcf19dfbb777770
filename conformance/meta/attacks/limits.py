"""Attacks that are let through, each with the reason; docs/red-team.md has their classes."""

from __future__ import annotations

LET_THROUGH: dict[str, str] = {}
