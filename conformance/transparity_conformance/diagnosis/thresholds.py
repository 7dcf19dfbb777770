"""The thresholds of the diagnosis, each with the measurement from which it comes."""

from __future__ import annotations

from transparity_conformance.oracle.budgets import Count, Threshold

CHANGED_BUDGET = (
    "the budgets of logits were measured with and without each of 155 faults, in three models. A fault made a budget "
    "at most 5.5 × as large in float32, 6.5 × in bfloat16, and 100 × if scores were large"
)
REMEASURED_WITHIN = {
    "float64": Threshold(1000, CHANGED_BUDGET),
    "float32": Threshold(1000, CHANGED_BUDGET),
    "bfloat16": Threshold(30, f"{CHANGED_BUDGET}; in half precision, nearly all errors are below 1,000 budgets"),
    "float16": Threshold(30, f"{CHANGED_BUDGET}; in half precision, nearly all errors are below 1,000 budgets"),
}
"""If the error with a fault is at most this multiple of the budget, the checker measures the budget again, with the
fault."""

LUCK = Threshold(
    4.5, "in 144 right models with large scores, errors reached 4.5 × a budget measured with three sets of weights"
)
"""The largest error of a right program, relative to a budget from only three sets of weights."""

EQUIVALENT_ULPS = Threshold(
    1024,
    "a map from the reference's values to the port's was fitted, on 12 probes of two models in float32. "
    "Equivalent forms deviate from this map by at most 23 ulps of their largest value (3 ulps without large scores). "
    "Wrong values deviate by at least 1.7 million ulps",
)
"""The tolerance of an equivalent form, in ulps of its largest element."""

NO_EXPLANATION = Threshold(
    0.5,
    "each of 53 faults was put into float32 models, and this fault and others were tried as the cause. The right fault "
    "leaves at most 1.1e-4 of the difference. Another fault leaves more than half of the difference in 99.6 % of 7,268 "
    "cases (two models, two probes, one of them with large scores)",
)
"""A fault explains a difference only if at most this share remains."""

ROUNDED_PRODUCTS = (
    "matrix products were rounded to TF32 or bfloat16 (five probes, 20 runs). If the reference rounds in the same "
    "way, at most 3e-4 of the difference remains. If the reference rounds in another way, the median of the remaining "
    "shares is at least 0.78, and the largest share at least 0.96. Queries that are also 5 % too large do not change "
    "these shares. In two models that return only logits, the right rounding leaves at most 0.27 in the median and "
    "0.49 at worst. There, rounding only in linear maps instead of in all products, or the reverse, leaves at least "
    "0.64 in the median. The limits allow for accelerators, which may round factors near a tie differently"
)
TYPICALLY_LEFT = Threshold(0.5, ROUNDED_PRODUCTS)
"""Undeclared rounding explains a difference if at most this share remains (median over probes)."""

LEFT_AT_WORST = Threshold(0.75, ROUNDED_PRODUCTS)
"""Undeclared rounding explains a difference if at most this share remains on the worst probe."""

FURTHEST_ROUNDED = Threshold(
    4,
    "in the runs of `ROUNDED_PRODUCTS`, differences reach 0.51 × the largest rounding if the reference rounds as the "
    "port does. If the port's queries are also 5 % too large, this ratio is 25 in TF32. In bfloat16, the ratio is "
    "only 3.1, but the share of the difference that remains exceeds its limit",
)
"""The largest difference of an element, relative to the largest change by rounding."""

COHERENT = Threshold(
    4,
    "the projection was measured on the PyTorch and Flax columns, with nine configurations in bfloat16 and one set "
    "of weights. The median was 1.0, and the maximum 1.65 (a Llama). The limit is more than twice this maximum. In "
    "float32, the projection reached 1.93; there, the checker needs no limit, because the tolerances are narrow",
)
"""The largest projection onto a fault's effect, relative to projections of rounding errors."""

PAIRS = (
    "12 pairs of faults were put into eight models, and the search compared only the logits. Of 640 to 2,173 single "
    "faults, one fault of the pair explained the logits best (11 pairs) or second best (1 pair)"
)
BEAM = Count(8, PAIRS)
"""The smallest number of combinations to which the search adds another fault."""

WALKS = Count(
    500,
    f"{PAIRS}. Pairs are ranked by the sum of their effects: 11 right pairs are among the first 375, and the other "
    "right pair is 31,228th",
)
"""The approximate number of combinations that the search tries for each number of faults."""

DEEPEST = 3
"""The largest number of faults in a combination."""

PAIR = 2
"""If only logits are known, larger combinations contain only faults that act at all possible taps."""

FITS = (
    "126 wrong numbers, such as an eps, were put into seven models, and numbers of all kinds were fitted to each "
    "result. The fit accepts 112 of the 126 numbers; 12 of the other 14 are an eps. The fit also accepts 142 of 553 "
    "numbers of a wrong kind, each of which leaves at least 1.7e-4 of the difference"
)
IMPROVED = Threshold(2, FITS)
"""A fit is accepted if the best number of the grid leaves at least this multiple of the fit's difference."""

BELOW_MEDIAN = Threshold(100, FITS)
"""A fit is also accepted if the median number of the grid leaves at least this multiple of the fit's difference."""
