"""Text from strangers in reports: the contract's own functions, which errors use too."""

from __future__ import annotations

from transparity.text import SENTENCE, VALUE, describe_error, listed, reason, safe, shown

__all__ = ["SENTENCE", "VALUE", "describe_error", "listed", "reason", "safe", "shown"]
