"""The thresholds of the diagnosis, and their origins."""

from __future__ import annotations


class Threshold(float):
    """A number and its provenance."""

    provenance: str

    def __new__(cls, value: float, provenance: str) -> Threshold:
        made = super().__new__(cls, value)
        made.provenance = provenance
        return made


CHANGED_BUDGET = (
    "budgets of logits were measured with a third of the catalogue, one fault at a time (155 of three models). They "
    "are at most 5.5 × the original ones in float32, 6.5 × in bfloat16, and a hundredfold for hot scores"
)
REMEASURED_WITHIN = {
    "float64": Threshold(1000, CHANGED_BUDGET),
    "float32": Threshold(1000, CHANGED_BUDGET),
    "bfloat16": Threshold(30, f"{CHANGED_BUDGET}; nearly everything is within a thousand budgets of half precision"),
    "float16": Threshold(30, f"{CHANGED_BUDGET}; nearly everything is within a thousand budgets of half precision"),
}
"""A difference of at most this many budgets is compared again, with a budget measured with the fault applied."""

LUCK = Threshold(4.5, "a right program with hot scores errs by up to 4.5 × what three points show (144 models)")
"""The most budgets that a right program may be off where rounding is measured at few points."""

EQUIVALENT_ULPS = Threshold(
    1024,
    "equivalent forms deviate from the fitted map by at most 23 ulps of their largest number with hot scores, and by 3 "
    "without. Wrong values deviate by at least 1.7 million (12 probes of two models in float32)",
)
"""The tolerance of an equivalent form, in ulps of its largest number."""

NO_EXPLANATION = Threshold(
    0.5,
    "the right one of 53 faults leaves at most 1.1e-4 of the difference of a float32 port. Any other leaves more than "
    "half in 99.6 % of 7,268 cases (two models, two probes, one of them with hot scores)",
)
"""A fault explains nothing if it leaves a larger share of a difference than this."""

ROUNDED_PRODUCTS = (
    "products rounded to TF32 and bfloat16 leave at most 3e-4 of the difference with the same rounding (five probes, "
    "20 runs). Another rounding, or additional queries 5 % too large, leaves at least 0.78 typically and 0.96 at "
    "worst. On accelerators, factors near a tie, and all that depends on them, round the other way"
)
TYPICALLY_LEFT = Threshold(0.5, ROUNDED_PRODUCTS)
LEFT_AT_WORST = Threshold(0.75, ROUNDED_PRODUCTS)
"""The share of a difference that undeclared rounding may leave, on most probes and on any."""

FURTHEST_ROUNDED = Threshold(
    4,
    "in the same runs, 0.51 with the right rounding; queries 5 % too large give 25 with TF32. They give 3.1 with "
    "bfloat16, where the typical number shows the fault",
)
"""The largest difference of any number, relative to the largest difference that the rounding causes."""

COHERENT = Threshold(
    4,
    "measured on the PyTorch and Flax columns with nine configurations in bfloat16, at one set of weights. An error "
    "lies along an effect by 1.0 × the reference's own rounding in the median, and by 1.65 × at worst (a Llama). The "
    "limit doubles this. In float32 it reached 1.93 on five: only half precisions, with wide budgets, are tested",
)
"""The limit of an error along an effect, relative to the largest one of the reference's own rounding."""
