"""The thresholds of the diagnosis: the numbers that what was measured is compared with, and where they come from."""

from __future__ import annotations


class Threshold(float):
    """A number, and its provenance."""

    provenance: str

    def __new__(cls, value: float, provenance: str) -> Threshold:
        made = super().__new__(cls, value)
        made.provenance = provenance
        return made


CHANGED_BUDGET = (
    "budgets of logits with a third of the catalogue applied, one fault at a time (155 of three models), are at most "
    "5.5 × those without it in float32, 6.5 × in bfloat16, and a hundredfold for hot scores"
)
REMEASURED_WITHIN = {
    "float64": Threshold(1000, CHANGED_BUDGET),
    "float32": Threshold(1000, CHANGED_BUDGET),
    "bfloat16": Threshold(30, f"{CHANGED_BUDGET}; nearly everything is within a thousand budgets of half precision"),
    "float16": Threshold(30, f"{CHANGED_BUDGET}; nearly everything is within a thousand budgets of half precision"),
}
"""The most budgets that a difference may be off for the budget to be measured again with the fault applied."""

LUCK = Threshold(4.5, "a right program with hot scores errs by up to 4.5 × what three points show (144 models)")
"""The most budgets that a right program may be off where rounding is measured at few points."""

EQUIVALENT_ULPS = Threshold(
    1024,
    "scores that are scaled and shifted, mapped values, and hidden units and contexts in another order deviate from "
    "the fitted map by at most 23 ulps of their largest number with hot scores, and by 3 without; wrong values by 1.7 "
    "million at least (12 probes of two models in float32)",
)
"""The tolerance of an equivalent form, in ulps of its largest number."""

NO_EXPLANATION = Threshold(
    0.5,
    "with the right one of 53 faults in the reference, 1.1e-4 of the difference of a float32 port is left at most; "
    "with any other, more than half in 99.6 % of 7,268 cases (two models, two probes, one of them with hot scores)",
)
"""The share of a difference with which a fault, or other fields, explain nothing, whatever their own budget."""

ROUNDED_PRODUCTS = (
    "models whose products are rounded to TF32 and bfloat16 leave 3e-4 of the difference at most with this rounding "
    "(five probes, 20 runs); another one, or queries 5 % too large beside it, 0.78 typically and 0.96 at worst, or "
    "more. On accelerators factors near a tie are rounded the other way, and so is what depends on them"
)
TYPICALLY_LEFT = Threshold(0.5, ROUNDED_PRODUCTS)
LEFT_AT_WORST = Threshold(0.75, ROUNDED_PRODUCTS)
"""The share of a difference that undeclared rounding may leave, on most probes and on any."""

FURTHEST_ROUNDED = Threshold(
    4,
    "in the same runs 0.51 with the right rounding; 25 with queries 5 % too large beside TF32, 3.1 beside bfloat16, "
    "which the typical number tells from rounding",
)
"""The largest difference of any number, in units of the largest difference that the rounding makes."""

COHERENT = Threshold(
    4,
    "on the PyTorch and Flax columns with nine configurations in bfloat16, at one set of weights, an error lies along "
    "an effect by 1.0 × what the reference's own rounding does in the median, and by 1.65 × at worst (a Llama); twice "
    "as much again. In float32 it reached 1.93 on five of them: only half precisions, with wide budgets, are tested",
)
"""The most that an error may lie along an effect, over the most that the reference's own rounding does."""
