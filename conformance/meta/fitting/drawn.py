"""Modules with random configurations: a template with other sizes, up to six changed fields, and other tensor names."""

import dataclasses
import random
import tomllib
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meta.independent.model import Model
from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.errors import ConfigError
from transparity.parameters import initialize_parameters, parameter_shapes
from transparity_conformance.identify.fitting.answer import NOT_RUN, SIZES, differences, templates
from transparity_conformance.identify.fitting.reading import ROTARY
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_numpy.transformer import transformer

MOST_DEPARTURES = 6

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("drawn.toml").read_text(encoding="utf-8"))
WORDS: dict[str, str] = _TABLES["words"]
SKIPPED = {*NOT_RUN, *_TABLES["skipped"], *(name for name in FIELD_TYPES if name.startswith("router_"))}

SCALINGS = ("none", "linear", "llama3")
"""The rotary scalings that `fit` can determine."""


class Drawn(Model):
    """The independent port, with the tensors of convolutions and batch norms as PyTorch modules store them."""

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.p.values())).dtype

    @dtype.setter
    def dtype(self, value: torch.dtype) -> None:
        pass

    def patches(self, pixels: Tensor) -> Tensor:
        at, size = "encoder.patch_projection", self.c.patch_size
        assert pixels.shape[-1] == self.c.image_size, "the image has a different size"
        x = F.conv2d(pixels, self.p[f"{at}.weight"], self.p.get(f"{at}.bias"), stride=size).flatten(2).mT
        token = [self.p["encoder.class_embedding.weight"].expand(len(x), 1, -1)] if self.c.class_token else []
        return torch.cat([*token, x], 1)

    def frames(self, mel: Tensor) -> Tensor:
        assert mel.shape[-1] == self.c.num_frames, "the audio has a different length"
        x = mel
        for name, stride in (("first", 1), ("second", 2)):
            at = f"encoder.{name}_convolution"
            x = F.gelu(F.conv1d(x, self.p[f"{at}.weight"], self.p[f"{at}.bias"], stride, 1))
        return x.mT

    def norm(self, name: str, x: Tensor, *, tap: bool = False) -> Tensor:
        if self.c.norm != "batch":
            return super().norm(name, x, tap=tap)
        gain = self.p[f"{name}.weight"] + (1 if self.c.norm_gain == "one-plus-weight" else 0)
        mean, variance = self.p[f"{name}.running_mean"], self.p[f"{name}.running_var"]
        return (x - mean) / torch.sqrt(variance + self.c.norm_eps) * gain + self.p.get(f"{name}.bias", 0)


class Module(nn.Module):
    def __init__(self, config: TransformerConfig, seed: int = 0) -> None:
        super().__init__()
        self.core = Drawn.__new__(Drawn)
        self.core.p = {"": torch.zeros(1)}
        self.core.__init__(config, {})  # type: ignore[misc]
        for name, value in initialize_parameters(config, seed).items():
            tensor = torch.tensor(_kernel(config, name, np.asarray(value)))
            theirs = "_".join(WORDS.get(word, word) for word in name.split("."))
            if "running" in name:
                self.register_buffer(theirs, tensor)
            else:
                self.register_parameter(theirs, nn.Parameter(tensor))
            self.core.p[name] = getattr(self, theirs)
        if config.shared_embedding:
            self.core.p.pop("decoder.token_embedding.weight", None)

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        """Change the precision of parameters and buffers. PyTorch creates new buffers, so store them in place of the
        old buffers."""
        names = {id(value): name for name, value in self.core.p.items()}
        kept = {theirs: names[id(value)] for theirs, value in self._buffers.items() if id(value) in names}
        result = super()._apply(function, recurse)  # type: ignore[no-untyped-call]
        self.core.p |= {name: getattr(self, theirs) for theirs, name in kept.items()}
        return result


def _kernel(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    if name.endswith("patch_projection.weight"):
        return value.reshape(len(value), config.image_channels, config.patch_size or 0, -1)
    return value


def module(config: TransformerConfig, seed: int = 0) -> Module:
    """Return a module whose `forward` takes the inputs of a configuration by name; the mask is optional."""
    names = {"image" if name == "pixels" else name: name for name in config.input_names}
    names |= {name: name for name in ("token_types", "attention_mask") if name in config.further_inputs}
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for name in names:
        default = None if name == "attention_mask" else Parameter.empty
        parameters.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default))
    signature = Signature(parameters)

    def forward(*given: Any, **named: Any) -> Tensor:
        self, *values = signature.bind(*given, **named).args
        return self.core.run(**dict(zip(names.values(), values, strict=False)))

    forward.__signature__ = signature  # type: ignore[attr-defined]
    return type("Drawn", (Module,), {"forward": forward})(config, seed)


def drawn(seed: int) -> tuple[str, TransformerConfig]:
    """Draw a template, sizes, and up to `MOST_DEPARTURES` changed fields that have an effect.

    `fit` does not determine layers with different positions, attention without a norm, a transform before the head,
    some rotary scalings, or experts. The draw excludes all of these, so Qwen3-Next has dense layers.
    """
    dice = random.Random(seed)
    name = dice.choice(sorted(name for name in templates() if _is_found(template_of(name))))
    template = template_of(name)
    sized = (_sized(template, dice) for _ in range(1000))
    config = next(config for config in sized if config is not None)
    wanted = dice.randint(0, MOST_DEPARTURES)
    fields = [field for field in FIELD_TYPES if field not in SKIPPED | SIZES]
    for _ in range(50):
        if len(differences(config, template)) >= wanted:
            break
        changed = _changed(config, dice.choice(fields), dice)
        if changed is not None and len(differences(changed, template)) <= wanted:
            config = changed
    return name, config


def template_of(name: str) -> TransformerConfig:
    """Return a template; the layers of a recurrent template become dense, and differ only in their mixers."""
    template = templates()[name]
    if not template.is_recurrent:
        return template
    kinds = {kind: {"mixer": own.mixer} for kind, own in template.layer_kinds.items()} if template.layer_types else {}
    return dataclasses.replace(
        template, num_experts=0, feed_forward_dim=template.feed_forward_dim, layer_overrides=kinds
    )


def _is_found(template: TransformerConfig) -> bool:
    known = {"sliding_window", "mixer", *ROTARY}
    others_differ = any(fields.keys() - known for fields in template.layer_overrides.values())
    is_scaled = template.rotary_scaling not in SCALINGS
    others = template.head_transform or template.num_experts or template.query_temperature
    return not (others_differ or is_scaled or others)


def _sized(template: TransformerConfig, dice: random.Random) -> TransformerConfig | None:
    heads, head_dim = dice.choice((2, 3, 4, 6)), dice.choice((4, 6, 8, 10))
    sizes: dict[str, Any] = {
        "source_vocab_size": dice.randint(30, 60),
        "target_vocab_size": dice.randint(30, 60),
        "max_length": dice.choice((16, 24, 40, 64)),
        "num_heads": heads,
        "embed_dim": heads * head_dim,
        "num_key_value_heads": None,
        "attention_head_dim": dice.choice((None, None, 12)),
        "num_encoder_layers": dice.randint(1, 3),
        "num_decoder_layers": dice.randint(1, 3),
        "feed_forward_dim": dice.randint(20, 90),
        "bos_id": None,
        "eos_id": None,
    }
    sizes |= _of_signals(template, dice) | _of_recurrences(dice)
    if template.is_pooled and template.pooling == "eos":
        sizes["eos_id"] = dice.randint(5, 29)
    if not template.feed_forward_dim:
        sizes["feed_forward_dim"] = 0
    if template.key_value_heads < template.num_heads:
        sizes["num_key_value_heads"] = dice.choice([n for n in range(1, heads) if heads % n == 0])
    if template.projection == "shared-per-head":
        sizes["attention_head_dim"] = None
    if template.shared_embedding:
        sizes["target_vocab_size"] = sizes["source_vocab_size"]
    if template.sliding_window:
        sizes["sliding_window"] = dice.choice((3, 5, 8))
    if template.pad_id is not None and template.pad_id >= 30:
        sizes["pad_id"] = dice.choice((0, 1, 29))
    try:
        return dataclasses.replace(template, **sizes)
    except ConfigError:
        return None


def _of_signals(template: TransformerConfig, dice: random.Random) -> dict[str, Any]:
    if template.reads_frames:
        frames = 2 * dice.randint(5, 9)
        return {"mel_bins": dice.randint(3, 6), "num_frames": frames, "source_vocab_size": None}
    if not template.reads_pixels:
        return {}
    side = dice.randint(2, 4)
    sizes = {"patch_size": dice.randint(2, 3), "image_channels": dice.choice((1, 3))}
    return sizes | {"max_length": side * side + template.class_token, "source_vocab_size": None}


def _of_recurrences(dice: random.Random) -> dict[str, Any]:
    heads = dice.choice((2, 4, 6))
    return {
        "recurrent_heads": heads,
        "recurrent_key_heads": dice.choice([each for each in range(1, heads + 1) if heads % each == 0]),
        "recurrent_key_dim": dice.randint(3, 6),
        "recurrent_value_dim": dice.randint(3, 6),
        "convolution_width": dice.randint(2, 4),
    }


def _changed(config: TransformerConfig, name: str, dice: random.Random) -> TransformerConfig | None:
    """Return the configuration with another value of a field, or None if this value is invalid or has no effect."""
    field, kind = TransformerConfig.__dataclass_fields__[name], FIELD_TYPES[name]
    tried = field.metadata.get("tried") or (get_args(kind) if get_origin(kind) is Literal else (True, False))
    if name == "position_offset":
        tried = (0, 1, 2)
    if name == "rotary_scaling":
        tried = SCALINGS
    value = dice.choice(tried)
    if value == getattr(config, name):
        return None
    try:
        changed = dataclasses.replace(config, **{name: value})
    except ConfigError:
        return None
    return None if computes_the_same(config, changed) else changed


def computes_the_same(config: TransformerConfig, other: TransformerConfig | None) -> bool:
    """Return whether the reference computes equal logits for both configurations, on padded inputs.

    If only one configuration has a parameter, the logits must be bitwise equal. A larger tolerance would accept a bias
    of the keys, for example, which changes only the rounding.
    """
    if other is None:
        return False
    shapes = [parameter_shapes(each) for each in (config, other)]
    if any(shapes[1].get(name, shape) != shape for name, shape in shapes[0].items()):
        return False
    tolerance = 1e-12 if shapes[0] == shapes[1] else 0
    every = probe_parameters(config) | probe_parameters(other)
    own = [{name: every[name].astype(np.float64) for name in each} for each in shapes]
    for seed, length in enumerate((1, 2, 7, min(40, config.max_length, other.max_length))):
        inputs: dict[str, Any] = mixed_inputs(config, seed, length, max(1, length - 2))
        if set(other.further_inputs) != set(config.further_inputs):
            return False
        one, two = transformer(config, own[0], **inputs), transformer(other, own[1], **inputs)
        if not np.allclose(one, two, rtol=0, atol=np.abs(one).max() * tolerance):
            return False
    return True
