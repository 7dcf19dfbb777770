"""The thresholds of the diagnosis, each with the measurement from which it comes."""

from __future__ import annotations

from transparity_conformance.oracle.budgets import Count, Threshold

CHANGED_BUDGET = (
    "budgets of logits were measured with each of 155 faults in three models. With a fault, a budget was at most 5.5 × "
    "the budget without it in float32, 6.5 × in bfloat16, and 100 × for large scores"
)
REMEASURED_WITHIN = {
    "float64": Threshold(1000, CHANGED_BUDGET),
    "float32": Threshold(1000, CHANGED_BUDGET),
    "bfloat16": Threshold(30, f"{CHANGED_BUDGET}; in half precision, nearly all errors are below 1,000 budgets"),
    "float16": Threshold(30, f"{CHANGED_BUDGET}; in half precision, nearly all errors are below 1,000 budgets"),
}
"""The largest difference, in budgets, for which the budget is measured again with the fault in the reference."""

LUCK = Threshold(
    4.5, "with large scores, a right program's error was up to 4.5 × the error at three points (144 models)"
)
"""The largest error of a right program, relative to a budget that is measured at only three points."""

EQUIVALENT_ULPS = Threshold(
    1024,
    "equivalent forms deviate from the fitted map by at most 23 ulps of their largest number (3 ulps without large "
    "scores). Wrong values deviate by at least 1.7 million ulps (12 probes of two models in float32)",
)
"""The tolerance of an equivalent form, in ulps of its largest number."""

NO_EXPLANATION = Threshold(
    0.5,
    "each of 53 faults was planted in float32. The planted fault leaves at most 1.1e-4 of the difference. Any other "
    "fault leaves more than half in 99.6 % of 7,268 cases (two models, two probes, one of them with large scores)",
)
"""A fault explains a difference only if at most this share of the difference remains."""

ROUNDED_PRODUCTS = (
    "products were rounded to TF32 and bfloat16 (five probes, 20 runs). The reference with the same rounding leaves at "
    "most 3e-4 of the difference. With another rounding, the median is at least 0.78, and the maximum at least 0.96. "
    "The same holds if queries are also 5 % too large. The limits allow for accelerators, which may round factors near "
    "a tie differently"
)
TYPICALLY_LEFT = Threshold(0.5, ROUNDED_PRODUCTS)
"""The share of a difference that may remain after undeclared rounding, in the median over all probes."""

LEFT_AT_WORST = Threshold(0.75, ROUNDED_PRODUCTS)
"""The share of a difference that may remain after undeclared rounding, on the worst probe."""

FURTHEST_ROUNDED = Threshold(
    4,
    "in the same runs, the ratio is 0.51 with the right rounding. If queries are also 5 % too large, the ratio is 25 "
    "in TF32. In bfloat16, the ratio is 3.1, but the remaining share of the difference shows the fault",
)
"""The largest accepted difference of an element, relative to the largest difference that rounding causes."""

COHERENT = Threshold(
    4,
    "measured on the PyTorch and Flax columns with nine configurations in bfloat16 and one set of weights. The median "
    "ratio was 1.0, and the largest was 1.65 (a Llama). The limit is more than twice 1.65. The test does not run "
    "in float32, because the budgets of float32 are narrow, and the ratio reached 1.93 in float32",
)
"""The largest accepted projection of an error onto the effect of a fault, relative to projections of rounding
errors."""

PAIRS = (
    "12 pairs of faults were put into eight models, and the search compared only the logits. Among 640 to 2,173 single "
    "faults, the better fault of each pair ranked first (11 pairs) or second"
)
BEAM = Count(8, PAIRS)
"""The smallest number of combinations of faults that the search extends by a further fault."""

WALKS = Count(500, f"{PAIRS}. Among all pairs by added effects, 11 pairs ranked at most 375th, and one 31,228th")
"""The number of combinations to try at each size, which limits how many combinations are extended."""

DEEPEST = 3
"""The largest number of faults in a combination."""

PAIR = 2
"""The largest number of faults in a combination if only logits are known, because more faults would overfit."""

FITS = (
    "126 numbers were planted in seven models, and all kinds of numbers were fitted to each result. The fit accepts "
    "112 of the 126 planted numbers; 12 of the other 14 are an eps. The fit also accepts 142 of 553 numbers that were "
    "not planted. Each of these 142 leaves at least 1.7e-4 of the difference"
)
IMPROVED = Threshold(2, FITS)
"""A fit is accepted if the grid's best number leaves at least this many times the difference that the fit leaves."""

BELOW_MEDIAN = Threshold(100, FITS)
"""A fit is also accepted if the grid's median difference is at least this many times the difference that it leaves."""
