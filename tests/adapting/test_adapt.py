import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fitting import small_vision
from tests.fitting.test_models import of_hub
from tests.helpers import invoke, table

from meta.adapting.measure import ALIKE, GPT2, PORTS, broken
from meta.adapting.measure import adapted as measured
from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checking.adapting import contradicting, summary
from transparity_conformance.identify.adapting.adapt import Adapted, adapt, proof_of
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.proof import Proof, own_probes
from transparity_conformance.running.adapters.adapter import Adapter
from transparity_conformance.running.adapters.model import Make, made_by
from transparity_conformance.running.adapters.notation import AdapterError

TABLE = table(__file__, "layouts.toml")

adapted = functools.cache(measured)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("name", TABLE["sample"])
def test_a_port_is_matched_without_a_question_and_proved_by_its_logits(name: str) -> None:
    result = adapted(name)
    assert result.is_proved, result
    assert not result.found.faults
    assert contradicting(result.adapter.lines) == []


@pytest.mark.parametrize(("name", "parameter", "line"), TABLE["layouts"])
def test_a_layout_is_written_as_one_would_write_it(name: str, parameter: str, line: str) -> None:
    assert adapted(name).adapter.lines[f"decoder.layers.{{i}}.{parameter}"] == line


def wrong_adapters(adapter: Adapter, config: TransformerConfig) -> list[Adapter]:
    """Return adapters with two lines of equal shape swapped, and adapters with a missing transpose."""
    shapes = parameter_shapes(config)
    size = {name: shapes[name.replace("{i}", "0")] for name in adapter.lines}
    pairs = [pair for pair in itertools.combinations(adapter.lines, 2) if size[pair[0]] == size[pair[1]]]
    exchanged = [{one: adapter.lines[other], other: adapter.lines[one]} for one, other in pairs]
    plain = [
        {name: line.removesuffix(step)}
        for name, line in adapter.lines.items()
        for step in (".T", ".permute(0, 2, 1, 3)")
        if line.endswith(step)
    ]
    return [Adapter(adapter.lines | lines, adapter.zero, adapter.unused) for lines in [*exchanged, *plain]]


@pytest.mark.parametrize(("make", "config"), [(PORTS["meta-llama"][0], ALIKE), (PORTS["gpt2-conv1d"][0], GPT2)])
def test_no_wrong_line_is_proved(make: Make, config: TransformerConfig) -> None:
    model = made_by(make, config)
    proof = functools.partial(proof_of, model, model.tensors(), own_probes(config))
    right = adapt(make, config).adapter
    assert proof(right).difference is None
    wrong = wrong_adapters(right, config)
    assert len(wrong) > len(right.lines)
    for adapter in wrong:
        assert _is_caught(proof, adapter), adapter


def _is_caught(proof: Callable[[Adapter], Proof], adapter: Adapter) -> bool:
    try:
        return proof(adapter).difference is not None
    except AdapterError:  # for example, two layers would share one tensor
        return True


def test_names_that_contradict_what_is_computed_are_told(tmp_path: Path) -> None:
    config = PORTS["mingpt"][1]
    result = adapt(broken(tmp_path, "mingpt", "def keys_first(c, k, q, v)", "def keys_first(c, q, k, v)"), config)
    assert result.is_proved
    lines, _ = summary(result)
    says = "{0}.query.{1} is blocks.{{i}}.attn.key.{1}, a name that suggests key: loading tensors by name"
    told = [line for line in lines if "a name that suggests key" in line]
    assert len(told) == 2
    for line, leaf in zip(told, ("weight", "bias"), strict=True):
        assert line.startswith(says.format("decoder.layers.{i}.self_attention", leaf))


@functools.cache
def fitted_and_adapted(name: str) -> Adapted:
    make = getattr(small_vision, name, None) or functools.partial(of_hub, name)
    return adapt(make, fit(make).config)


FITTED = [pytest.param(*row, marks=[pytest.mark.long] * row[0].startswith("Mamba")) for row in TABLE["fitted_layouts"]]


@pytest.mark.parametrize(("name", "parameter", "line"), FITTED)
def test_a_model_whose_configuration_is_fitted_is_matched(name: str, parameter: str, line: str) -> None:
    result = fitted_and_adapted(name)
    assert result.is_proved, result
    assert not result.found.faults
    assert result.adapter.lines[parameter] == line


FORGETFUL = """
import torch

from meta.adapting.decoders import MinGPT

NAMES = {"tok_emb.weight": "decoder.token_embedding.weight"}


def build(config, parameters):
    model = MinGPT(config)
    model.load_state_dict({name: torch.from_numpy(parameters[ours]) for name, ours in NAMES.items()}, strict=False)
    return lambda tokens: model.eval()(torch.from_numpy(tokens)).detach()
"""


def test_what_is_never_loaded_is_named_by_the_command(tmp_path: Path) -> None:
    port, config = tmp_path / "port.py", tmp_path / "config.json"
    port.write_text(FORGETFUL, encoding="utf-8")
    config.write_text(PORTS["mingpt"][1].to_json(), encoding="utf-8")
    result = invoke("adapt", f"{port}:build", "--config", config)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "no tensor of your model has the values of head.weight in the folder" in said
    assert "values of token_embedding.weight" not in said


def test_a_port_that_is_lost_at_once_is_asked_about_everything(tmp_path: Path) -> None:
    result = adapt(broken(tmp_path, "nanogpt", "x + self.get_submodule(", "x * self.get_submodule("), GPT2)
    assert result.found.lost_at == "decoder.embedding"
    assert set(result.adapter.lines.values()) == {"?"}
    assert not result.is_settled and not result.is_proved
