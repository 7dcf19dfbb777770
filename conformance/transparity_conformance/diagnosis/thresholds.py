"""The thresholds of the diagnosis, and their origins."""

from __future__ import annotations


class Threshold(float):
    """A number, and how it was measured."""

    provenance: str

    def __new__(cls, value: float, provenance: str) -> Threshold:
        made = super().__new__(cls, value)
        made.provenance = provenance
        return made


CHANGED_BUDGET = (
    "budgets of logits were measured with 155 faults of three models, one at a time. They are "
    "at most 5.5 × the original budgets in float32, 6.5 × in bfloat16, and 100 × for large scores"
)
REMEASURED_WITHIN = {
    "float64": Threshold(1000, CHANGED_BUDGET),
    "float32": Threshold(1000, CHANGED_BUDGET),
    "bfloat16": Threshold(30, f"{CHANGED_BUDGET}; in half precision, nearly all errors are below 1,000 budgets"),
    "float16": Threshold(30, f"{CHANGED_BUDGET}; in half precision, nearly all errors are below 1,000 budgets"),
}
"""A difference of at most this many budgets is compared again, with a budget that is measured with the fault
applied."""

LUCK = Threshold(
    4.5, "with large scores, a right program's error was up to 4.5 × the error at three points (144 models)"
)
"""The largest error of a right program, in budgets that are measured at few points."""

EQUIVALENT_ULPS = Threshold(
    1024,
    "equivalent forms deviate from the fitted map by at most 23 ulps of their largest number (3 ulps without large "
    "scores). Wrong values deviate by at least 1.7 million ulps (12 probes of two models in float32)",
)
"""The tolerance of an equivalent form, in ulps of its largest number."""

NO_EXPLANATION = Threshold(
    0.5,
    "of 53 faults, the right one leaves at most 1.1e-4 of the difference in float32. A wrong one leaves more than half "
    "in 99.6 % of 7,268 cases (two models, two probes, one of them with large scores)",
)
"""A fault that leaves more than this share of a difference does not explain it."""

ROUNDED_PRODUCTS = (
    "for products rounded to TF32 and bfloat16, the right rounding leaves at most 3e-4 of the difference (five probes, "
    "20 runs). With another rounding, or with queries that are also 5 % too large, at least 0.78 typically remains, "
    "and 0.96 at worst. The limits allow for accelerators, which may round factors near a tie differently"
)
TYPICALLY_LEFT = Threshold(0.5, ROUNDED_PRODUCTS)
LEFT_AT_WORST = Threshold(0.75, ROUNDED_PRODUCTS)
"""The share of a difference that undeclared rounding may leave: on most probes, and on every probe."""

FURTHEST_ROUNDED = Threshold(
    4,
    "in the same runs, it is 0.51 with the right rounding. Queries that are 5 % too large give 25 with TF32. With "
    "bfloat16, they give 3.1, but the share that remains shows the fault",
)
"""The largest difference of any element, relative to the largest difference that the rounding causes."""

COHERENT = Threshold(
    4,
    "measured on the PyTorch and Flax columns with nine configurations in bfloat16 and one set of weights. Projections "
    "were 1.0 × the reference's own in the median, and at most 1.65 × (a Llama). The limit is above twice this. The "
    "test is not made in float32, whose budgets are narrow; there, projections reached 1.93 ×",
)
"""The largest projection of an error onto an effect, relative to the largest projection of the reference's rounding."""
