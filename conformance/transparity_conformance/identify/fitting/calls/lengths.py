"""The longest input that a module without a table of positions takes."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.identify.fitting.subject import FittedModel
from transparity_conformance.oracle.oracle import Arrays


def longest_taken(subject: FittedModel, inputs: Arrays) -> int:
    """The most tokens that the module answers, at most those of a configuration that names no length.

    Args:
        subject: the module.
        inputs: tokens that it answers.
    """
    if not subject.tokens:
        return max(subject.positions.values())
    low = max(inputs[name].shape[1] for name in subject.tokens)
    high = max(low, TransformerConfig.max_length)
    while low < high:
        tried = high if high == TransformerConfig.max_length else (low + high + 1) // 2
        low, high = (tried, high) if _takes(subject, inputs, tried) else (low, tried - 1)
    return low


def _takes(subject: FittedModel, inputs: Arrays, length: int) -> bool:
    """Return whether the module answers inputs of this length."""
    whole = {name: inputs[name] for name in subject.positions}
    rest = {name: value for name, value in inputs.items() if name not in whole}
    return subject.takes(whole | {name: np.resize(value, (len(value), length)) for name, value in rest.items()})
