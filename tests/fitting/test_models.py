import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import transformers as hub
from tests.fitting import decoders, forms, small_vision
from tests.fitting.decoders import CONFIG
from tests.helpers import table
from torch import nn

from meta.adapting import arrays, encoders
from meta.adapting.decoders import by_head
from meta.adapting.measure import CONFIGS
from meta.fitting.drawn import module
from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.fitting.answer import templates
from transparity_conformance.identify.fitting.fit import fit
from transparity_conformance.identify.fitting.subject import FitError


@dataclass(frozen=True)
class Found:
    make: Callable[[], Any]
    fields: Mapping[str, Any]
    template: str | None = None
    differs: Collection[str] | None = None
    """The fields that may differ from the template; None permits any."""
    is_confirmed: bool = True
    is_whole: bool = False
    """Whether `fit` must use every parameter."""
    untold: Mapping[str, str] = field(default_factory=dict)
    """By undetermined field, the beginning of the reason that `fit` must give."""
    told: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def like(config: TransformerConfig, *besides: str) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(config) if each.name not in besides]
    return {name: getattr(config, name) for name in names}


def drawn(expected: Mapping[str, Any] | None = None, /, **changes: Any) -> Found:
    config = dataclasses.replace(CONFIG, **changes)
    return Found(lambda: module(config), changes if expected is None else expected)


def rows(names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


TRANSLATION = CONFIGS["torch-transformer"]
ARRAYS = dataclasses.replace(CONFIG, pad_id=None, norm_eps=1e-5)
VISIBLE = dataclasses.replace(
    CONFIG, position_count="visible", position_offset=2, target_mask="causal-and-padding", pad_id=1, max_length=24
)
FROM_ZERO = dataclasses.replace(VISIBLE, position_offset=0)
SMALL: dict[str, Any] = {"source_vocab_size": 37, "target_vocab_size": 37, "max_length": 40, "feed_forward_dim": 40}
RECURRENT = ("recurrent_heads", "recurrent_key_heads", "recurrent_key_dim", "recurrent_value_dim", "convolution_width")
PATCHES = ("patch_size", "image_channels", "class_token", "max_length", "pooling")


HUB: dict[str, dict[str, Any]] = table(__file__, "hub.toml")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value == "null" else value for name, value in values.items()}


def of_hub(name: str, kind: Any = None, **fields: Any) -> Any:
    kind = kind or getattr(hub, HUB[name]["class"])
    return kind(kind.config_class(**plain(HUB[name]["config"]) | fields))


def classes_of_gpt2() -> Any:
    sizes = {"vocab_size": 37, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, "num_labels": 5}
    model = hub.GPT2ForSequenceClassification(hub.GPT2Config(**sizes, pad_token_id=3))
    return lambda ids: model(ids).logits


def of_maps(*, bias: bool) -> Found:
    config = dataclasses.replace(example_config("mamba2"), recurrent_bias=bias, convolution_bias=not bias)
    names = ("recurrent_bias", "convolution_bias", *RECURRENT)
    return Found(lambda: module(config), {name: getattr(config, name) for name in names}, is_whole=True)


ROTARY: dict[str, Any] = {"positions": "rotary", "rope_theta": 500.0}

MODELS: dict[str, Found] = {
    "a place in the sequence": Found(decoders.Cached, like(ARRAYS)),
    "keys before queries": Found(
        decoders.keys_before_queries, like(dataclasses.replace(ARRAYS, mask_value=-np.inf), "mask_order")
    ),
    "frozen maps": Found(decoders.frozen, like(ARRAYS)),
    "half precision": Found(lambda: decoders.GPT().bfloat16(), like(ARRAYS)),
    "norms of several eps": Found(
        decoders.of_two_eps,
        {},
        is_confirmed=False,
        remarks=("decoder.final_norm has eps 0.001; the other norms have eps 1e-05",),
    ),
    "wrong at one length": Found(lambda: decoders.GPT(attend=decoders.mistaken), {"num_heads": 3}, is_confirmed=False),
    "padding in rows": Found(
        decoders.PaddedRows,
        {"pad_id": 5, "target_mask": "causal-and-padding"},
        is_confirmed=False,
        remarks=("The decoder masks rows of scores (queries) at the token 5, instead of columns (keys)",),
    ),
    "a plain ViT": Found(
        small_vision.PlainViT,
        rows((*PATCHES, "head", "num_classes"), (2, 3, False, 16, "mean", "classes", 5)),
        is_whole=True,
    ),
    "a ViT of timm": Found(
        small_vision.TimmViT,
        rows((*PATCHES, "pooler", "mask_value"), (2, 1, True, 10, "first", "none", -np.inf)),
        is_whole=True,
    ),
    "any number of patches": Found(
        small_vision.UnplacedViT, {"positions": "none"}, untold={"max_length": "the module takes any number of patches"}
    ),
}


def of_template(name: str) -> Any:
    return module(templates()[name])


LONG: dict[str, Found] = {
    "another scale": dataclasses.replace(
        drawn(num_heads=4, attention_scale="embed_dim"),
        untold={"attention_scale": '"head_dim" with the multiplier 0.5 has the same effect'},
    ),
    "a long context": dataclasses.replace(
        drawn({}, positions="rotary", max_length=77),
        untold={"max_length": "", "pad_id": "", "sliding_window": ""},
        told=("rope_theta",),
    ),
    "heads of four features": dataclasses.replace(drawn({}, **ROTARY, embed_dim=12), untold={"rotary_scaling": ""}),
    "heads of eight features": dataclasses.replace(drawn({}, **ROTARY), told=("rotary_scaling",)),
    **{
        name: Found(functools.partial(module, templates()[name].resized(**SMALL)), {}, differs=())
        for name in ("vanilla", "t5", "bert", "translation", "pre-norm")
    },
    "heads and rows in NumPy": Found(functools.partial(arrays.pico, CONFIG), like(ARRAYS, "mask_value", "mask_order")),
    "flax.nnx": Found(functools.partial(arrays.flax, CONFIG), like(ARRAYS, "mask_value", "mask_order")),
    "flax.linen": Found(forms.linen, like(ARRAYS, "mask_value", "mask_order")),
    "all logits only with targets": Found(decoders.Chat, like(ARRAYS)),
    "the longest input": Found(forms.Short, {"max_length": 37}),
    "experts by themselves": Found(lambda: module(example_config("mixtral")), {}, template="mixtral", differs=()),
    "nn.Transformer": Found(
        functools.partial(encoders.Torch, TRANSLATION), like(TRANSLATION, "mask_value", "mask_order")
    ),
    "maps by themselves": of_maps(bias=False),
    "maps with biases": of_maps(bias=True),
    "the last token is pooled": Found(
        classes_of_gpt2, {"head": "classes", "pooling": "last", "pad_id": 3, "num_classes": 5}, is_whole=True
    ),
    "a usual eps": Found(lambda: decoders.rms(1e-6), {"norm_eps": 1e-6}),
    **{f"eps {eps}": Found(functools.partial(decoders.rms, eps), {"norm_eps": eps}) for eps in (1e-7, 1e-8, 3e-9)},
    "a buffer": Found(decoders.buffered, {"num_heads": 3}),
    "no buffer": Found(decoders.Decoder, {"num_heads": 3, "max_length": 40}),
    "one map for a head": Found(decoders.all_of_head, {"projection": "shared-per-head", "num_heads": 3}, is_whole=True),
    "two masks": Found(decoders.TwoMasks, {"padding": "attention-mask"}),
    "an added mask": Found(decoders.AddedMask, {"padding": "attention-mask", "mask_value": -np.inf}),
    "a matrix of each head": Found(
        lambda: decoders.with_projection(decoders.EachHead, split=by_head),
        {"num_heads": 3, "qkv_bias": True},
        is_whole=True,
    ),
    "head by head": Found(decoders.head_by_head, {"num_heads": 3}),
    "fewer positions than tokens": Found(lambda: module(VISIBLE), like(VISIBLE), is_whole=True),
    "padding without a position": Found(lambda: module(FROM_ZERO), like(FROM_ZERO), is_whole=True),
    "gated attention to another length": Found(
        lambda: module(dataclasses.replace(templates()["vanilla"].resized(**SMALL), attention_gate=True)),
        {"attention_gate": True},
        is_whole=True,
    ),
    "a window in the only layer": Found(
        lambda: module(templates()["gemma2"].resized(num_decoder_layers=1)),
        {},
        untold={"layer_types": "every attention layer", "layer_overrides": "the value depends on layer_types"},
    ),
    **{
        f"a mean with padding {pad}": drawn(head="classes", num_classes=5, pooling="mean", pad_id=pad, tied_head=False)
        for pad in (None, 5)
    },
    # The names of the types are free, and two scalings may give the same angles.
    **{
        f"layers with other positions, {name}": Found(functools.partial(of_template, name), {}, name, differs)
        for name, differs in {
            "gemma3_text": ("layer_overrides",),
            "smollm3": ("layer_types", "layer_overrides"),
            "cohere2": ("layer_types", "layer_overrides"),
        }.items()
    },
    "patches that see only themselves": Found(
        lambda: module(dataclasses.replace(templates()["vit"], sliding_window=1)), {"sliding_window": 1}
    ),
    "padded to all places": Found(decoders.padded, {"num_heads": 3, "max_length": 40}),
    "rows second": Found(decoders.RowsSecond, {"norm_position": "post"}),
    "rows second, norms first": Found(lambda: decoders.RowsSecond(norm_first=True), {"norm_position": "pre"}),
    "rows second, GELU": Found(lambda: decoders.RowsSecond(activation="gelu"), {"activation": "gelu"}),
}

for name, row in HUB.items():
    rest = {key: row[key] for key in ("template", "differs", "is_whole") if key in row}
    fields = {
        key: tuple(each) if isinstance(each, list) else each for key, each in plain(row.get("fields", {})).items()
    }
    found = Found(functools.partial(of_hub, name), fields, **rest)
    (LONG if row.get("is_long") else MODELS)[name] = found

EVERY = [
    *(pytest.param(row, id=name) for name, row in MODELS.items()),
    *(pytest.param(row, id=name, marks=pytest.mark.long) for name, row in LONG.items()),
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("row", EVERY)
def test_a_model_is_found_as_it_stands(row: Found) -> None:
    made = fit(row.make)
    assert made.is_confirmed == row.is_confirmed
    assert {name: getattr(made.config, name) for name in row.fields} == row.fields
    assert row.template in (None, made.template)
    assert row.differs is None or set(made.differences) <= set(row.differs)
    assert not row.is_whole or made.unused == ()
    assert all(made.untold.get(name, "?").startswith(reason) for name, reason in row.untold.items()), made.untold
    assert not set(row.told) & set(made.untold)
    assert not row.remarks or made.remarks == row.remarks


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "broken": (forms.Broken(), FitError, r"The module raised RuntimeError: no .*tokens \(3, 31\)"),
    "three inputs": (forms.Three, PortError, r"\(src, tgt, src_mask\).*return a function"),
    "half": (forms.Half, PortError, "build it with dtype float32"),
    "two towers": (forms.Pair, PortError, r"takes images \(pixel_values\) and token ids .* each tower separately"),
    "another activation": (
        lambda: of_hub("Whisper", forms.ReluWhisper),
        FitError,
        "expected Whisper's: two convolutions of width 3 with strides 1 and 2, bias and GELU",
    ),
    "no patches": (forms.Pixels, FitError, "no parameter maps square patches"),
    "normalised patches": (
        small_vision.NormedViT,
        FitError,
        "The residuals and norms of the encoder were not recognized",
    ),
    "images by another name": (decoders.Images, FitError, "The image embedding was not recognized"),
}

REFUSED_LATE: dict[str, tuple[Any, type[Exception], str]] = {
    "some experts": (
        lambda: of_hub("Qwen3-MoE", mlp_only_layers=[0]),
        FitError,
        "The experts differ between layers, or some layers have none",
    ),
    "one length": (decoders.whole, FitError, r"when it was called with tokens \(8, 9\)"),
    "wide queries": (
        lambda: decoders.with_projection(lambda: nn.Linear(24, 120), split=decoders.wide_queries),
        FitError,
        r"attn\.c_attn\.weight.* do not divide into a query, a key and a value; expected the same head_dim",
    ),
    "one map for a head's values": (decoders.values_of_head, FitError, "cannot combine the recognized parts"),
    "log-probabilities": (decoders.LogProbabilities, FitError, "The output is the log-softmax .* return the logits"),
    "scaled positions": (decoders.scaled, PortError, r"wpe\.weight are multiplied by 0\.25 before they are added"),
    "a router": (
        lambda: of_hub("Qwen3-Next, dense", mlp_only_layers=[]),
        FitError,
        r"The experts of the router .*gate\.weight were not recognized",
    ),
}


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        *(pytest.param(*row, id=name) for name, row in REFUSED.items()),
        *(pytest.param(*row, id=name, marks=pytest.mark.long) for name, row in REFUSED_LATE.items()),
    ],
)
def test_what_no_configuration_says_is_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fit(make)
