import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.looping import for_each

from meta.adapting.measure import GPT2, PORTS
from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.identify.adapting.adapt import adapt
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.running.adapters.adapter import Adapter, read_adapter, written
from transparity_conformance.running.adapters.model import adapted, made_by
from transparity_conformance.running.adapters.notation import AdapterError, Shapes, for_all_layers, select

NANO_GPT = PORTS["nanogpt"][0]
PARAMETERS = probe_parameters(GPT2)
QUERY = "decoder.layers.{i}.self_attention.query.weight"


@functools.cache
def found() -> Adapter:
    return adapt(NANO_GPT, GPT2).adapter


def tensors(adapter: Adapter) -> dict[str, np.ndarray]:
    return adapter.tensors(GPT2, PARAMETERS, made_by(NANO_GPT, GPT2).tensors())


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "adapter.toml"
    adapter = Adapter(found().lines | {"head.bias": ""}, ["a.{i}.bias"], ["mask"])
    path.write_text(written(adapter, ["a remark", "of two lines\nin one"]), encoding="utf-8")
    assert read_adapter(path) == adapter


def test_every_number_of_a_tensor_is_that_of_its_parameter() -> None:
    fused = tensors(found())["transformer.h.1.attn.c_attn.weight"]
    roles = ("query", "key", "value")
    ours = [PARAMETERS[f"decoder.layers.1.self_attention.{role}.weight"] for role in roles]
    np.testing.assert_array_equal(fused, np.concatenate(ours))


@for_each(
    ("lines", "message"),
    [
        ({QUERY: "?"}, "'?' instead of a tensor for decoder.layers.{i}.self_attention.query.weight; replace"),
        ({QUERY: "transformer.h.{i}.attn.c_attn.weight"}, "has 1728 elements; expected 576"),
        ({QUERY: "transformer.h.{i}.attn.c_attn.weight[N*H:2*N*H]"}, "selects elements that another line also selects"),
        ({QUERY: "transformer.h.{i}.gone"}, "names 'transformer.h.0.gone', but the port has no such tensor"),
        ({QUERY: ""}, "this parameter is not 0; name its tensor, or"),
        ({"decoder.layers.{i}.nothing": "x"}, "'decoder.layers.{i}.nothing', which is no parameter of the model"),
        ({QUERY: None}, "no line for decoder.layers.0.self_attention.query.weight; add a line"),
    ],
)
def test_a_line_that_cannot_be_is_one_sentence(lines: dict[str, str | None], message: str) -> None:
    given = {name: line for name, line in (found().lines | lines).items() if line is not None}
    with pytest.raises(AdapterError) as error:
        tensors(Adapter(given, found().zero, found().unused))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_tensor_that_nothing_is_written_into_is_named() -> None:
    def larger(config: TransformerConfig) -> torch.nn.Module:
        model = PORTS["nanogpt"][0](config)
        model.extra = torch.nn.Linear(3, 5)
        return model

    with pytest.raises(AdapterError, match=r"No line selects 15 of 15 elements of the port's 'extra\.weight'"):
        found().tensors(GPT2, PARAMETERS, made_by(larger, GPT2).tensors())


def test_a_buffer_is_named_by_its_whole_name() -> None:
    adapter = Adapter({"head.bias": "logits.bias.view(-1)", "a": "h.{i}.scale", "b": ""})
    assert [adapter.names(name) for name in ("logits.bias", "h.7.scale", "logits", "h")] == [True, True, False, False]


@for_each(
    ("text", "message"),
    [
        ("[parameters", "cannot be read as TOML"),
        ('[parameters]\n"a" = 1', r"has no table \[parameters\] of strings"),
        ('other = 1\n[parameters]\n"a" = "b"', "has the key 'other'; expected parameters, zero, unused"),
        ('zero = "a"\n[parameters]\n"a" = "b"', "zero in .* is 'a'; expected a list of tensors"),
    ],
)
def test_a_file_that_is_no_adapter_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AdapterError, match=message):
        read_adapter(path)


def test_a_model_that_cannot_be_made_says_what_to_write() -> None:
    def needs_sizes(config: Any) -> Any:
        return config.n_layer

    with pytest.raises(PortError, match=r"raised AttributeError: .*write a function that returns the model"):
        made_by(needs_sizes, GPT2)
    with pytest.raises(PortError, match="takes 2 arguments; expected none, or the configuration"):
        made_by(lambda one, other: one, GPT2)
    with pytest.raises(PortError, match="which contains no tensor"):
        made_by(lambda: len, GPT2)


def test_an_adapted_model_is_a_port_of_its_own_name() -> None:
    def nano_gpt(config: TransformerConfig) -> Any:
        return NANO_GPT(config)

    build = adapted(nano_gpt, found())
    assert build.__name__ == "nano_gpt"
    tokens = np.array([[1, 2, 3]])
    assert tuple(build(GPT2, PARAMETERS)(tokens=tokens).shape) == (1, 3, GPT2.vocab_size)


def test_a_module_that_serves_all_builds_is_kept_apart_for_each() -> None:
    make: Any = NANO_GPT
    model = make(GPT2)

    def port() -> Any:
        return lambda tokens: model(tokens) + 0

    build, tokens = adapted(port, found()), np.arange(6).reshape(2, 3)
    first, other = build(GPT2, PARAMETERS), {name: 2 * value for name, value in PARAMETERS.items()}
    expected = first(tokens=tokens)
    assert not torch.equal(build(GPT2, other)(tokens=tokens), expected)
    assert torch.equal(first(tokens=tokens), expected)


def test_layers_that_are_numbered_behind_an_underscore_have_one_line() -> None:
    lines = {f"decoder.layers.{i}.feed_forward.up.bias": f"params.h_{i}.dense_1.bias" for i in range(2)}
    names = dict.fromkeys(lines.values(), (4,))
    assert for_all_layers(lines, names) == {"decoder.layers.{i}.feed_forward.up.bias": "params.h_{i}.dense_1.bias"}


SIZES = {"D": 6, "N": 3, "K": 1, "H": 2, "F": 8}
TENSORS = {
    "fused.weight": np.arange(18 * 6).reshape(18, 6),
    "kernel": np.arange(6 * 3 * 2).reshape(6, 3, 2),
    "heads.0.w": np.arange(12).reshape(2, 6),
    "heads.1.w": np.arange(12, 24).reshape(2, 6),
    "heads.2.w": np.arange(24, 36).reshape(2, 6),
    "odd.T": np.arange(4).reshape(2, 2),
}
SHAPES: Shapes = {name: value.shape for name, value in TENSORS.items()}
FUSED, KERNEL = TENSORS["fused.weight"], TENSORS["kernel"]


@for_each(
    ("text", "expected"),
    [
        ("fused.weight", FUSED),
        ("fused.weight.T", FUSED.T),
        ("fused.weight[N*H:2*N*H]", FUSED[6:12]),
        ("fused.weight[:, 2:4].T", FUSED[:, 2:4].T),
        ("fused.weight.view(N, 3, H, -1)[:, 1]", FUSED.reshape(3, 3, 2, 6)[:, 1]),
        ("fused.weight.view(K, N/K+3, -1)[0, 1:]", FUSED.reshape(1, 6, -1)[0, 1:]),
        ("kernel.permute(1, 2, 0)", KERNEL.transpose(1, 2, 0)),
        ("heads.{n}.w", np.stack([TENSORS[f"heads.{n}.w"] for n in range(3)])),
        ("odd.T", TENSORS["odd.T"]),
        ("odd.T.T", TENSORS["odd.T"].T),
    ],
)
def test_a_line_selects_what_pytorch_would(text: str, expected: np.ndarray) -> None:
    found = select(text, SHAPES, SIZES).read(TENSORS)
    np.testing.assert_array_equal(found.ravel(), expected.ravel())


@for_each(
    ("text", "message"),
    [
        ("absent.weight", "'absent.weight', but the port has no such tensor"),
        ("heads.{n}.b", "'heads.{n}.b', but the port has no such tensor"),
        ("fused.weight[0:X]", "'X' is not a size; expected numbers and D, N, K, H, F"),
        ("fused.weight[0:7/2]", "'7 / 2' is not a whole number"),
        ("fused.weight.view(N, 5, -1)", r"'.view\(N, 5, -1\)' of 'fused.weight.view\(N, 5, -1\)' does not fit"),
        ("fused.weight[99]", "does not fit the shape"),
        ("fused.weight.view(K, N/K+2, -1)[0, 1:]", "does not fit the shape"),
        ("fused.weight.view(__import__, -1)", "not a size"),
        ("fused.weight[len]", "'len' is not a size"),
        ("fused.weight[2**99]", "an operator other than"),
        ("fused.weight[0:6:2]", "not a size"),
        ("fused.weight.exp()", "the port has no such tensor"),
    ],
)
def test_whatever_else_is_written_is_one_sentence_and_never_run(text: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message) as error:
        select(text, SHAPES, SIZES)
    assert str(error.value).count("\n") == 0
