"""Group a model's parameters in the order of the forward pass. The search matches one group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import tap_shapes

OF_THE_HEAD = ("pooler", "head_transform", "head_norm", "head")


@dataclass(frozen=True)
class Map:
    """The parameters of a linear map, a table or a norm, and the activation that it computes (`tap`)."""

    parameters: tuple[str, ...]
    tap: str


@dataclass(frozen=True)
class Place:
    """Parameters that must be matched together, because no earlier activation distinguishes them."""

    maps: tuple[Map, ...]
    tap: str
    """The first activation that changes if any two of the parameters are swapped."""
    taps: tuple[str, ...]
    """The activations at which a fault of the port may act: from the previous group's `tap` to this `tap`."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for each in self.maps for name in each.parameters)


def places_of(config: TransformerConfig) -> Iterator[Place]:
    shapes = parameter_shapes(config)
    seen: set[str] = set()
    between: list[str] = []
    for tap in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 2)):
        between.append(tap)
        maps = [
            Map(tuple(name for name in each.parameters if name in shapes and name not in seen), each.tap)
            for each in _maps(tap, config)
        ]
        seen |= {name for each in maps for name in each.parameters}
        if maps := [each for each in maps if each.parameters]:
            yield Place(tuple(maps), tap, tuple(between))
            between = [tap]


def _maps(tap: str, config: TransformerConfig) -> list[Map]:
    scope, _, last = tap.rpartition(".")
    if last == "embedding" and config.reads_pixels:
        tables = [Map((f"{scope}.{each}_embedding.weight",), tap) for each in ("class", "position")]
        return [Map(_linear(f"{scope}.patch_projection"), tap), *tables]
    if last.endswith("_convolution"):
        return [Map(_linear(tap), tap)]
    if ".recurrence." in tap:
        return [Map(each, tap) for each in _of_recurrence(scope, last)]
    if last == "embedding":
        names = ("token_embedding", "position_embedding", "token_type_embedding")
        return [Map(tuple(f"{scope}.{each}.weight" for each in names), tap)]
    if last.endswith("norm") and not last.startswith(("query", "key")):
        return [Map(_norm(tap), tap)]
    if last == "scores":
        linears = [Map(_linear(f"{scope}.{role}"), f"{scope}.{role}") for role in ("query", "key")]
        gains = [Map((f"{scope}.{role}_norm.weight",), f"{scope}.{role}_norm") for role in ("query", "key")]
        bias = f"{scope.partition('.')[0]}.relative_bias.weight"
        return [*linears, *gains, Map((f"{scope}.key_rotary.weight",), tap), Map((bias,), tap)]
    if last.endswith("_latent"):
        return [Map((f"{tap}.weight",), tap), Map((f"{tap}_norm.weight",), tap)]
    if last == "weights":
        return [Map((f"{scope}.sinks",), tap)]
    if last == "gated_context":
        return [Map(_linear(f"{scope}.gate"), tap)]
    if last == "context":
        return [Map(_linear(f"{scope}.value"), f"{scope}.value")]
    if last == "hidden":
        return [Map(_linear(f"{scope}.{role}"), tap) for role in ("gate", "up")]
    if last == "output" and scope.endswith("feed_forward"):
        return [Map(_linear(f"{scope}.down"), tap)]
    if last == "output" and scope.endswith("attention"):
        return [Map(_linear(tap), tap)]
    if last == "output" and scope in config.stacks:
        return [Map(_norm(f"{scope}.final_norm"), tap)]
    return [Map(_linear(name), tap) for name in OF_THE_HEAD] if tap == "logits" else []


def _of_recurrence(scope: str, last: str) -> list[tuple[str, ...]]:
    if last.endswith("_convolved"):
        role = last.removesuffix("_convolved")
        return [_linear(f"{scope}.{role}"), _linear(f"{scope}.{role}_convolution")]
    step: list[tuple[str, ...]] = [_linear(f"{scope}.decay"), (f"{scope}.dt_bias",)]
    parts: dict[str, list[tuple[str, ...]]] = {
        "time_step": step,
        "log_decay": [*step, (f"{scope}.A_log",)],
        "beta": [_linear(f"{scope}.beta")],
        "context": [(f"{scope}.D",)],
        "gated_context": [_linear(f"{scope}.gate"), (f"{scope}.gated_norm.weight",)],
        "output": [_linear(f"{scope}.output")],
    }
    return parts.get(last, [])


def _linear(scope: str) -> tuple[str, ...]:
    return f"{scope}.weight", f"{scope}.bias"


def _norm(scope: str) -> tuple[str, ...]:
    return tuple(f"{scope}.{name}" for name in ("weight", "bias", "running_mean", "running_var"))
