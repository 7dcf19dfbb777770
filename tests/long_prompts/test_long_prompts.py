import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import peak_of
from torch import Tensor

from meta.independent.model import Model
from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity_conformance import check
from transparity_conformance.oracle.budgets import RULES
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.oracle.reach import models
from transparity_conformance.oracle.reach.long import LongProbe, long_probes
from transparity_conformance.oracle.reach.models import ReachModel
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.report import Report

LENGTH = 1100

LLAMA = dataclasses.replace(
    CASES["llama"].resized(embed_dim=32, num_heads=4, num_key_value_heads=2, num_decoder_layers=1),
    max_length=LENGTH,
    rotary_scaling="llama3",
    rotary_factor=8.0,
    rotary_original_length=400,
    pad_id=None,
)


def rotated_at(positions: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda self, x, where: Model.rotated(self, x, positions(where))


def scaled_if(is_scaled: Callable[[int, TransformerConfig], bool]) -> Callable[..., Tensor]:
    """Return a method that scales the rotary frequencies only in prompts whose length `is_scaled` accepts."""

    def rotated(self: Model, x: Tensor, where: Tensor) -> Tensor:
        right = self.own
        try:
            if not is_scaled(int(where.max()) + 1, right):
                self.own = SimpleNamespace(**{**vars(right), "rotary_scaling": "none"})
            return Model.rotated(self, x, where)
        finally:
            self.own = right

    return rotated


def one_more(self: Model, where: Tensor, keys: int, window: int) -> Tensor:
    return Model.near(self, where, keys, window + 1)


def one_more_far_away(self: Model, where: Tensor, keys: int, window: int) -> Tensor:
    is_far = (where >= 2 * window)[:, None, :, None]
    return Model.near(self, where, keys, window) | (is_far & Model.near(self, where, keys, window + 1))


def checked(config: TransformerConfig, budget: float = 0.0, **wrong: Callable[..., Any]) -> Report:
    parameters, port = probe_parameters(config), type("Wrong", (Model,), wrong)
    return check(port, config=config, parameters=parameters, lengths=[LENGTH], budget=budget)


@pytest.fixture(autouse=True)
def as_large_as_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the checker choose calls of at most 64 tokens by itself, as for a model with a million parameters."""
    size = sum(value.size for value in probe_parameters(LLAMA).values())
    monkeypatch.setattr(models, "AFFORDABLE", 64 * size)


SEVERAL_BLOCKS: dict[str, TransformerConfig] = {
    "a window": dataclasses.replace(CASES["qwen"], max_length=300, sliding_window=70),
    "chunks": dataclasses.replace(CASES["llama4"], max_length=300, sliding_window=70, query_temperature_length=90),
    "biases of both stacks": dataclasses.replace(CASES["t5"], max_length=300),
    "linear biases": dataclasses.replace(CASES["llama"], max_length=300, positions="alibi", rotary_scaling="none"),
    "padding, and a mask that weighs": dataclasses.replace(
        CASES["gpt-j"], max_length=300, mask_value=-3.0, target_mask="causal-and-padding", pad_id=0
    ),
    "hidden states of an encoder": dataclasses.replace(CASES["bert"], max_length=300, head="hidden"),
}


@pytest.mark.parametrize("name", SEVERAL_BLOCKS)
def test_logits_by_blocks_are_those_of_the_whole(name: str) -> None:
    config = SEVERAL_BLOCKS[name]
    model = ReachModel(name, config, probe_parameters(config), [(1, (300,) * len(config.input_names))])
    (whole,), (long,) = model.probes, long_probes(config, model.parameters, [300])
    assert long.inputs.keys() == whole.inputs.keys()
    errors = long.oracle.errors(whole.oracle.expected["logits"])
    assert errors.shape == (300,) and errors.max() <= whole.budget("float64")
    for dtype in ("float32", "bfloat16"):
        ours, known = long.oracle.noise(dtype), whole.oracle.noise(dtype)["logits"]
        assert ours <= RULES[dtype].factor * known and known <= RULES[dtype].factor * ours


@pytest.mark.parametrize("padded", [slice(0, 150), slice(100, 260)])
def test_queries_that_see_padding_alone_weigh_the_keys_of_the_whole_prompt(padded: slice) -> None:
    config = dataclasses.replace(
        CASES["gpt-j"], max_length=300, sliding_window=60, target_mask="causal-and-padding", pad_id=0
    )
    model = ReachModel("padded", config, probe_parameters(config), [(1, (300,))])
    (whole,), (long,) = model.probes, long_probes(config, model.parameters, [300])
    for probe in (whole, long):
        probe.inputs["tokens"][:, padded] = 0
    assert long.oracle.errors(whole.oracle.expected["logits"]).max() <= whole.budget("float64")


def test_no_array_has_a_number_for_every_query_and_key() -> None:
    config = dataclasses.replace(LLAMA.resized(embed_dim=8, num_heads=1, num_key_value_heads=1), max_length=8192)
    (probe,) = long_probes(config, probe_parameters(config), [8192])
    assert peak_of(lambda: probe.oracle.noise("float32")) < 8192**2


@pytest.mark.parametrize("window", [None, 300])
def test_a_right_port_agrees_at_every_position_of_a_long_prompt(window: int | None) -> None:
    report = checked(dataclasses.replace(LLAMA, sliding_window=window))
    assert report.verdict == "agrees", as_text([report])
    assert report.coverage.lengths[-1] == LENGTH
    (claim,) = (claim for claim in report.claims if claim.id == "forward.long")
    assert claim.where == f"logits (length {LENGTH}, batch 1)"
    assert ("sliding_window" in report.coverage.features) == (window is not None)


def test_a_window_that_only_a_long_prompt_crosses_is_untested_without_it() -> None:
    report = check(Model, config=WINDOW, parameters=probe_parameters(WINDOW))
    assert report.verdict == "inconclusive"
    assert report.coverage.untested == ("sliding_window = 300", "window_kind = sliding")


FAR: dict[str, tuple[Callable[[Tensor], Tensor], int, str, str]] = {
    "positions in bfloat16": (lambda where: where.bfloat16(), 258, "rotary-precision", "positions are rounded"),
    "a short table": (lambda where: where.clamp(max=511), 513, "rotary-position", "the last row of a table"),
    "positions begun again": (lambda where: where % 256, 257, "rotary-position", "begin at 0 again"),
}
"""The wrong positions, the first wrong length, the cause, and a part of the cause's description."""


@pytest.mark.long
@pytest.mark.parametrize("name", FAR)
def test_a_mistake_far_away_is_found_at_the_first_wrong_length_and_named(name: str) -> None:
    wrong, length, cause, says = FAR[name]
    report = checked(LLAMA, 30.0, rotated=rotated_at(wrong))
    assert report.verdict == "diverges"
    assert any(f"wrong from length {length} on" in note for note in report.notes), report.notes
    found = [each for fault in report.faults for each in fault.causes]
    assert found and {each.mistake for each in found} == {cause} and says in found[0].says, as_text([report])


WINDOW = dataclasses.replace(LLAMA, sliding_window=300)


@pytest.mark.parametrize(
    ("config", "wrong", "first"),
    [
        (WINDOW, {"near": one_more}, 301),
        (WINDOW, {"near": one_more_far_away}, 601),
        (LLAMA, {"rotated": scaled_if(lambda length, config: length <= config.rotary_original_length)}, 401),
    ],
)
def test_a_mistake_far_away_diverges_from_its_first_wrong_position_on(
    config: TransformerConfig, wrong: dict[str, Any], first: int
) -> None:
    """Use windows that are off by one, and a scaling that ends at the original length."""
    report = checked(config, **wrong)
    assert report.verdict == "diverges"
    assert any(f"wrong from length {first} on" in note for note in report.notes), report.notes


def test_a_wrong_prompt_that_is_too_long_for_its_activations_is_told_without_a_cause() -> None:
    report = checked(LLAMA, rotated=rotated_at(lambda where: where % 1050))
    assert report.verdict == "diverges" and not report.faults[-1].causes
    assert any("length 1051, batch 1: not searched for causes" in note for note in report.notes), report.notes


def test_scaling_beyond_the_original_length_alone_diverges_in_short_prompts() -> None:
    report = checked(LLAMA, rotated=scaled_if(lambda length, config: length > config.rotary_original_length))
    assert report.verdict == "diverges"
    assert f"length {LENGTH}, batch 1: not compared, because shorter prompts do not agree" in report.not_compared


def test_a_prompt_beyond_max_length_is_refused_before_the_port_is_built() -> None:
    with pytest.raises(ConfigError, match=r"length 1,101 .* max_length is 1,100; expected 1 to 1,100"):
        check(Model, config=LLAMA, parameters=probe_parameters(LLAMA), lengths=[LENGTH + 1])


def test_the_oracle_of_a_prefix_is_that_of_the_prompt() -> None:
    (probe,) = long_probes(LLAMA, probe_parameters(LLAMA), [400])
    part = functools.partial(LongProbe.prefix, probe)(150)
    (short,) = long_probes(LLAMA, probe.parameters, [150])
    fresh = dataclasses.replace(short, inputs=part.inputs)
    assert part.oracle.errors(fresh.oracle.logits(slice(0, 150))).max() <= part.budget("float64")
