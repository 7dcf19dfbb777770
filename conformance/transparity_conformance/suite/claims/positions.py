"""Claims that positions follow the formulas of the papers, and that masks agree exactly."""

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.report.comparison import ClaimEvidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

FEW_ULPS = RULES["float64"].floor * epsilon("float64")


@claim(dtypes=("float32",), of_reference=True, harness=True)
def relative_buckets(bench: Bench) -> Iterator[ClaimEvidence]:
    """Each distance has the bucket that T5 defines, even if the limit of a bucket is an integer."""
    bucket_of = bench.function("positions.in_attention.relative_buckets")
    pairs = ((4, 5), (4, 200), (6, 81), (8, 9), (8, 400), (10, 160), (12, 17), (16, 288), (32, 25), (32, 128))
    for buckets, farthest in pairs:
        distances = np.arange(-3 * farthest, 3 * farthest + 1)
        for both in (False, True):
            way = "both directions" if both else "only the past"
            record = bench.evidence(f"{buckets} buckets up to distance {farthest}, {way}")
            truth = [_bucket(int(distance), buckets, farthest, both) for distance in distances]
            yield record.exactly("buckets", bucket_of(distances, buckets, farthest, both=both), truth)


def _bucket(distance: int, buckets: int, farthest: int, both: bool) -> int:
    """Return the bucket of a distance. With exact = ⌊buckets / 2⌋, each distance below exact has its own bucket. A
    larger distance has the bucket exact + ⌊log(distance / exact) / log(farthest / exact) · (buckets − exact)⌋, computed
    with fractions."""
    if both:
        half = buckets // 2
        return (half if distance > 0 else 0) + _bucket(-abs(distance), half, farthest, both=False)
    exact, distance = buckets // 2, max(-distance, 0)
    if distance < exact:
        return distance
    reached = Fraction(distance, exact) ** (buckets - exact)
    steps = [step for step in range(buckets - exact) if reached >= Fraction(farthest, exact) ** step]
    return exact + steps[-1]


@claim(dtypes=("float32",), of_reference=True, harness=True)
def alibi_slopes(bench: Bench) -> Iterator[ClaimEvidence]:
    """The slopes for 1 to 33 heads follow the formula of ALiBi's authors, in float64 for every dtype."""
    slopes = bench.function("positions.in_attention.alibi_slopes")
    for heads in range(1, 34):
        yield bench.evidence(f"{heads} heads").within("slopes", slopes(heads), _slopes(heads), FEW_ULPS)


def _slopes(heads: int) -> list[float]:
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start ** (index + 1) for index in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return _slopes(below) + _slopes(2 * below)[0::2][: heads - below]


@claim(dtypes=("float32",), of_reference=True, harness=True)
def rotary_frequencies(bench: Bench) -> Iterator[ClaimEvidence]:
    """Rotary frequencies, scaled or not, follow their formulas, in float64 for every dtype."""
    frequencies = bench.function("rotary.tables.rotary_frequencies")
    for name, config in CASES.items():
        if config.positions == "rotary":
            yield bench.evidence(name).within("frequencies", frequencies(config), _frequencies(config), FEW_ULPS)
    for truncate, original in ((True, 64), (False, 64), (True, 300)):
        config = dataclasses.replace(CASES["yarn"], rotary_truncate=truncate, rotary_original_length=original)
        record = bench.evidence(f"yarn from {original}, truncated {truncate}")
        yield record.within("frequencies", frequencies(config), _frequencies(config), FEW_ULPS)
    config = CASES["phi3"]
    record = bench.evidence("phi3 beyond the original length")
    short = dataclasses.replace(config, rotary_short_factors=config.rotary_long_factors)
    yield record.within("frequencies", frequencies(config, beyond=True), _frequencies(short), FEW_ULPS)


def _frequencies(config: TransformerConfig) -> list[float]:
    size = config.rotated_dim
    plain = [config.rope_theta ** (-2 * pair / size) for pair in range(size // 2)]
    if config.rotary_scaling == "none":
        return plain
    slowed = [frequency / config.rotary_factor for frequency in plain]
    if config.rotary_scaling == "linear":
        return slowed
    if config.rotary_scaling == "longrope":
        return [before / factor for before, factor in zip(plain, config.rotary_short_factors, strict=True)]
    if config.rotary_scaling == "yarn":
        return _yarn(config, plain, slowed)
    low, high = config.rotary_slow_turns, config.rotary_fast_turns
    result = []
    for before, after in zip(plain, slowed, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength > config.rotary_original_length / low:
            result.append(after)
        elif wavelength < config.rotary_original_length / high:
            result.append(before)
        else:
            smooth = (config.rotary_original_length / wavelength - low) / (high - low)
            result.append((1 - smooth) * after + smooth * before)
    return result


def _yarn(config: TransformerConfig, plain: list[float], slowed: list[float]) -> list[float]:
    """Return YaRN's frequencies. Frequencies with many turns within the original length stay unscaled, and frequencies
    with few turns are divided by the factor.

    In between, a frequency is a mixture of the unscaled and the divided frequency.
    """
    size, original = config.rotated_dim, config.rotary_original_length

    def pair(turns: float) -> float:
        return (size * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(config.rope_theta))

    low, high = pair(config.rotary_fast_turns), pair(config.rotary_slow_turns)
    if config.rotary_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramps = [min(1.0, max(0.0, (index - low) / (high - low))) for index in range(size // 2)]
    return [ramp * slow + (1 - ramp) * fast for ramp, slow, fast in zip(ramps, slowed, plain, strict=True)]


@claim(topic="embeddings", dtypes=("float32",), of_reference=True, harness=True)
def sinusoidal(bench: Bench) -> Iterator[ClaimEvidence]:
    """The table of sinusoids, interleaved or in halves, follows the formula in float64 for every dtype."""
    table = bench.function("positions.sinusoidal.sinusoidal_positions")
    for length, size in ((1, 2), (101, 6), (11, 24)):
        angles = [[position / 10_000 ** (i // 2 * 2 / size) for i in range(size)] for position in range(length)]
        truth = [[(math.cos if i % 2 else math.sin)(row[i]) for i in range(size)] for row in angles]
        # Angles are rounded before the sine, so allow for an ulp of the largest angle.
        budget = RULES["float64"].floor * epsilon("float64") * length
        record = bench.evidence(f"{length}×{size}")
        yield record.within("positions", table(length, size), truth, budget)
        halves = [row[::2] + row[1::2] for row in truth]
        yield record.within("sines, then cosines", table(length, size, 10_000.0, "halves"), halves, budget)


TOKENS = np.array([[5, 0, 7, 0], [0, 3, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])


@claim(topic="masks", dtypes=("float32",), of_reference=True, harness=True)
def causal(bench: Bench) -> Iterator[ClaimEvidence]:
    """With a causal mask, position t sees the positions 0 to t, and no later positions."""
    causal_mask = bench.function("masks.causal_mask")
    for length in (1, 2, 7):
        truth = [[key <= query for key in range(length)] for query in range(length)]
        mask = causal_mask(np.arange(length)[None], length)
        yield bench.evidence(f"length {length}").exactly("mask", mask, [[truth]])


@claim(topic="masks", dtypes=("float32",), of_reference=True, harness=True)
def padding(bench: Bench) -> Iterator[ClaimEvidence]:
    """The padding mask hides exactly the padding tokens, at any position. Without a `pad_id`, the mask hides
    nothing."""
    padding_mask, visible_keys = (bench.function(f"masks.{name}") for name in ("padding_mask", "visible_keys"))
    for pad_id in (0, 3, None):
        truth = [[[[token != pad_id for token in row]]] for row in TOKENS.tolist()]
        mask = padding_mask(visible_keys(TOKENS, pad_id))
        yield bench.evidence(f"pad_id {pad_id}").exactly("mask", mask, truth)


@claim(topic="masks", dtypes=("float32",), of_reference=True, harness=True)
def target(bench: Bench) -> Iterator[ClaimEvidence]:
    """A decoder's mask hides future tokens and, with `causal-and-padding`, also padding."""
    target_mask = bench.function("masks.target_mask")
    past = [[key <= query for key in range(4)] for query in range(4)]
    both = [[[[past[q][k] and row[k] != 0 for k in range(4)] for q in range(4)]] for row in TOKENS.tolist()]
    for kind, truth in (("causal", [[past]]), ("causal-and-padding", both)):
        mask = target_mask(np.arange(4)[None], TOKENS != 0, kind)
        yield bench.evidence(kind).exactly("mask", mask, truth)
