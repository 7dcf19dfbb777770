import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.alignment.heard import AlignedCall, aligned_probe
from transparity_conformance.identify.alignment.known_faults import Recorded
from transparity_conformance.identify.alignment.lines import behind_taps, operation_of
from transparity_conformance.identify.alignment.reported import alike_on_a_line
from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.matching.forms import unmasked, with_biases, without_loops
from transparity_conformance.matching.graph import common
from transparity_conformance.matching.recorded import layouts
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters, probes_of
from transparity_conformance.report.report import Cause, Divergence
from transparity_conformance.running.process.wire import operations_of, table_of
from transparity_numpy.transformer import transformer

HEADS, LENGTH = 3, 9


@pytest.fixture(scope="module")
def probe() -> Probe:
    config = example_config("gpt2")
    assert config.num_heads == HEADS
    return aligned_probe(probes_of(config, "gpt2")["mixed"])


def stack(*lines: int) -> tuple[Source, ...]:
    return tuple(Source("port.py", number, f"line {number}") for number in lines)


def operation(number: int, value: float | np.ndarray, *inputs: int) -> Operation:
    return Operation(f"op{number}", np.asarray(value, np.float64), inputs, stack(number))


def test_a_loop_over_heads_is_one_operation(probe: Probe) -> None:
    operations = [operation(1, np.arange(6.0))]
    operations += [operation(2, np.full(2, float(head)), 0) for head in range(HEADS)]
    for head in range(HEADS):
        operations += [operation(3, np.full(4, float(head)), 1 + head)]
        operations += [operation(4, np.full(4, 10.0 + head), len(operations) - 1)]
    operations += [operation(5, np.zeros(12), *(5 + 2 * head for head in range(HEADS)))]
    found = without_loops(probe, operations)
    assert [each.name for each in found] == ["op1", "op2", "op2", "op2", "op3", "op4", "op5"]
    assert found[4].value.tolist() == [[head] * 4 for head in range(HEADS)]
    assert [each.inputs for each in found[4:]] == [(1, 2, 3), (4,), (5,)]


def test_turns_that_read_later_ones_and_turns_of_other_shapes_are_no_loop(probe: Probe) -> None:
    dependent = [operation(0, 1.0)]
    for _ in range(HEADS):
        dependent += [operation(3, np.zeros(4), len(dependent) - 1), operation(4, np.zeros(4), len(dependent))]
    assert without_loops(probe, dependent) == dependent
    unlike = [operation(number, np.zeros(4 + turn)) for turn in range(HEADS) for number in (3, 4)]
    assert without_loops(probe, unlike) == unlike


def steps(more: Sequence[int]) -> list[Operation]:
    """Return the operations of a port that runs one token per call; later calls also run the lines `more`."""
    operations: list[Operation] = []
    for token in range(LENGTH):
        operations.append(operation(1, np.full(2, float(token))))
        for number in more if token else ():
            operations.append(operation(number, np.zeros(3), len(operations) - 1))
        operations.append(operation(4, np.arange(token + 1.0), len(operations) - 1))
    return [*operations, operation(5, 0.0, len(operations) - 1)]


@pytest.mark.parametrize("more", [(), (2,), (2, 3)])
def test_steps_of_one_token_are_one_pass(probe: Probe, more: Sequence[int]) -> None:
    found = without_loops(probe, steps(more))
    assert [each.name for each in found] == ["op1", "op4", "op5"]
    assert found[1].value.tolist() == np.tril(np.tile(np.arange(float(LENGTH)), (LENGTH, 1))).tolist()
    assert [each.inputs for each in found] == [(), (0,), (1,)]


def test_masked_scores_are_what_they_were_made_from_scaled() -> None:
    scores = np.random.default_rng(0).integers(-9, 9, (2, 4, 4)) + 0.5
    seen = np.tril(np.ones((4, 4), bool))
    masked = operation(2, np.where(seen, scores, -np.inf), 0)
    scaled = operation(3, masked.value / 2, 1)
    assert np.array_equal(unmasked([operation(1, scores), masked, scaled], 2), scores / 2)
    biased = operation(3, masked.value / 2 + np.arange(4.0), 1)
    assert np.isneginf(unmasked([operation(1, scores), masked, biased], 2)).any()


@pytest.mark.parametrize("lowest", [-np.inf, -1e9])
def test_masked_scores_are_what_they_were_made_from_with_the_bias_of_the_mask(lowest: float) -> None:
    scores = np.random.default_rng(0).integers(-9, 9, (2, 4, 4)).astype(float)  # sums are exact
    bias = operation(2, np.arange(16.0).reshape(4, 4))
    mask = operation(3, bias.value + np.where(np.tril(np.ones((4, 4), bool)), 0.0, lowest), 1)
    both = operation(4, scores + mask.value, 0, 2)
    operations = [operation(1, scores), bias, mask, both]
    assert np.array_equal(unmasked(operations, 3), scores + bias.value)
    assert np.array_equal(with_biases(operations)[3].value, scores + bias.value)
    masked = operation(4, np.where(mask.value < -1e6, lowest, scores), 0)
    assert with_biases([operation(1, scores), bias, mask, masked])[3] is masked


def test_masked_values_that_share_their_inputs_are_searched_once() -> None:
    """Make 40 masked values, each from two views of the previous value, so that 2⁴⁰ paths lead to the first value."""
    masked = np.where(np.tril(np.ones((2, 4, 4), bool)), 0.0, -np.inf)
    operations = [operation(1, masked)]
    for _ in range(40):
        last = len(operations) - 1
        operations += [operation(1, masked, last), operation(2, masked, last)]
        operations.append(operation(3, masked, last + 1, last + 2))
    assert with_biases(operations) == operations


def test_features_whose_halves_are_interleaved_have_a_layout() -> None:
    ours = np.arange(1.0 * 3 * 5 * 8).reshape(1, 3, 5, 8)
    theirs = ours.reshape(1, 3, 5, 2, 4).swapaxes(-1, -2).reshape(1, 3, 5, 8).swapaxes(1, 2).reshape(5, 24)
    read = [layout.to_ours(theirs) for layout in layouts(ours.shape, theirs.shape, 3)]
    assert any(np.array_equal(each, ours) for each in read)
    assert not np.array_equal(read[0], ours)


def test_the_mask_is_not_the_wrong_line_of_scores() -> None:
    probe = probes_of(example_config("t5"), "t5")["mixed"]
    scope = "decoder.layers.0.self_attention"
    expected = {tap: np.asarray(probe.oracle.expected[f"{scope}.{tap}"]) for tap in ("query", "key", "scores")}
    products = expected["query"] @ expected["key"].swapaxes(-1, -2)
    length = products.shape[-1]
    bias = operation(4, (expected["scores"] - products)[:, :, ::-1, ::-1])
    mask = operation(5, np.where(np.tril(np.ones((length, length), bool)), 0.0, -1e9))
    operations = [operation(1, expected["query"]), operation(2, expected["key"]), operation(3, products, 0, 1)]
    operations += [mask, bias, operation(6, bias.value + mask.value, 3, 4)]
    operations += [operation(7, products + operations[-1].value, 2, 5)]
    taps = {f"{scope}.{tap}": value for tap, value in expected.items()} | {f"{scope}.scores": products + bias.value}
    numbers = {f"{scope}.query": 0, f"{scope}.key": 1, f"{scope}.scores": 6}
    call = AlignedCall(operations, taps, numbers, lambda: operations)
    assert operation_of(probe, call, f"{scope}.scores", 1.0, 1e-6) == len(operations) - 1  # the sum with the bias


def shared(*callers: int) -> Operation:
    return Operation("op", np.zeros(2), (), stack(1, *callers))


def test_a_line_that_is_right_elsewhere_is_told_by_its_caller() -> None:
    operations = [shared(10, 20), shared(11, 20), shared(12, 20)]
    right = behind_taps(operations, {f"tap{i}": i for i in range(3)}, ["tap0", "tap2"])
    assert getattr(operations[1].line_apart(right), "line", None) == 11
    # Several lines call the function, which is right in another iteration of each line.
    assert getattr(operations[1].line_apart([*operations]), "line", None) == 11
    # Only one line calls the function, or the operation is wrong wherever it runs.
    assert operations[1].line_apart(operations[1:2]) == operations[1].source
    assert operations[1].line_apart([]) == operations[1].source


def test_a_cause_is_false_if_its_line_is_unexplained_at_another_activation_of_the_same_kind() -> None:
    layer, line = "decoder.layers.0", {"file": "port.py", "line": 12, "code": "x"}
    cause = (Cause("norm-eps", "eps is 1e-08 instead of 1e-06", 1e-8),)
    unknown = Divergence(f"{layer}.self_attention_norm", 1.0, 0.1, source=line)
    norm, hidden = (Divergence(f"{layer}.{tap}", 1.0, 0.1, cause, source=line) for tap in ("norm", "feed_forward.up"))
    elsewhere = dataclasses.replace(norm, source=line | {"line": 13})
    norm = dataclasses.replace(norm, where=f"{layer}.feed_forward_norm")
    told = alike_on_a_line([unknown, norm, hidden, elsewhere])
    assert told == (unknown, norm.unexplained, hidden, elsewhere)


def test_another_expression_of_the_same_line_is_not_the_operation_elsewhere() -> None:
    lines = [stack(1, caller) for caller in (10, 11, 11)]
    columns = [(4, 9), (4, 9), (0, 3)]
    placed = (
        (dataclasses.replace(line[0], columns=each), *line[1:]) for line, each in zip(lines, columns, strict=True)
    )
    elsewhere, wrong, beside = (Operation("op", np.zeros(2), (), each) for each in placed)
    assert getattr(wrong.line_apart([elsewhere, beside]), "line", None) == 11


def test_callers_are_kept_on_the_wire_though_the_line_is_the_same() -> None:
    operations = [shared(10, 20), shared(11, 20), shared(10, 20)]
    table = table_of(operations)
    assert len(table["stacks"]) == 2
    received = operations_of(table, [each.value for each in operations])
    assert [each.stack for each in received] == [each.stack for each in operations]


WRITTEN = {"qwen3-next": {"decoder.layers.0.recurrence.context"}}
"""By model, taps whose operations are not recorded: the reference writes their positions one by one into an array of
zeros."""


@pytest.mark.parametrize("case", MODELS)
def test_everything_between_two_taps_of_the_reference_is_recorded(case: str) -> None:
    config, lost = MODELS[case], set[str]()
    tokens: dict[str, Any] = dict(mixed_inputs(config, 0, 9, 7))
    parameters = {name: np.asarray(value, np.float64) for name, value in probe_parameters(config).items()}

    def tap(name: str, value: Any) -> Any:
        if not isinstance(value, Recorded):
            lost.add(name)
        return np.asarray(value).view(Recorded)

    with np.errstate(all="ignore"):
        recorded = {name: value.view(Recorded) for name, value in parameters.items()}
        transformer(config, recorded, tap=tap, **tokens)
    assert lost == WRITTEN.get(case, set())


words = st.text(alphabet="abc", max_size=12)


def length_by_a_table(one: str, other: str) -> int:
    """Return the length of the longest common subsequence, computed by the textbook's recurrence."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(words, words)
def test_it_is_common_in_order_and_as_long_as_can_be(one: str, other: str) -> None:
    pairs = common(one, other)
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(i < k and j < n for (i, j), (k, n) in itertools.pairwise(pairs))
    assert len(pairs) == length_by_a_table(one, other)


def test_what_is_repeated_more_often_is_paired_from_its_end() -> None:
    assert common("xaby", "xababy") == [(0, 0), (1, 3), (2, 4), (3, 5)]
