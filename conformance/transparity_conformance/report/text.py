"""Untrusted text in reports: the functions of the contract, which errors also use."""

from __future__ import annotations

from transparity.text import SENTENCE, VALUE, describe_error, listed, reason, safe, shown

__all__ = ["SENTENCE", "VALUE", "describe_error", "listed", "reason", "safe", "shown"]
