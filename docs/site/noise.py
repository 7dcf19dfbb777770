"""Tables of the effect of rounding on the reference, by precision, depth and length."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from docs.site.pages import table

from transparity.config import TransformerConfig
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters

PRECISIONS = ("float64", "float32", "bfloat16", "float16")
DEPTHS, LENGTHS = (1, 2, 4, 8, 16), (2, 8, 32, 128)
CASE, DEPTH, LENGTH = "llama", 2, 8

PAGE = "my-port-disagrees.md"
PLACE = "<!-- docs/site/noise.py inserts the measured tables here -->"
"""The line of the page `PAGE` that the tables replace."""

HEAD = """### Measured rounding errors

The model is a small {case} with {size}. The tables show the largest rounding error of the reference's logits, as a
share of the largest logit, with a column for each precision. With these random weights, attention is neither flat nor
concentrated on one key.
"""


def tables() -> str:
    model = dataclasses.replace(CASES[CASE], max_length=max(LENGTHS))
    size = f"{model.embed_dim} features and {model.num_heads} heads"
    deep = [(depth, measured(dataclasses.replace(model, num_decoder_layers=depth), LENGTH)) for depth in DEPTHS]
    shallow = dataclasses.replace(model, num_decoder_layers=DEPTH)
    long = [(length, measured(shallow, length)) for length in LENGTHS]
    parts = [HEAD.format(case=CASE, size=size), _table(f"layers, at {LENGTH} tokens", deep)]
    return "\n".join([*parts, _table(f"tokens, with {DEPTH} layers", long)])


def measured(config: TransformerConfig, length: int) -> list[float]:
    """Return the error of the logits in each precision, relative to the largest logit."""
    oracle = forward_oracle(config, probe_parameters(config), mixed_inputs(config, source=length, target=length))
    largest = float(np.abs(oracle.expected["logits"]).max())
    return [oracle.noise(precision)["logits"] / largest for precision in PRECISIONS]


def _table(first: str, rows: Sequence[tuple[int, list[float]]]) -> str:
    cells = [(str(key), *(f"{value:.0e}" for value in values)) for key, values in rows]
    return table((first, *PRECISIONS), cells, numbers=1 + len(PRECISIONS)) + "\n"
