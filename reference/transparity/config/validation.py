"""Checks of a configuration: single fields, then combinations of fields."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args, get_origin

from transparity.config.fields import COUNT
from transparity.config.layer_kinds import checked_overrides, checked_types
from transparity.errors import ConfigError, shown
from transparity.parts.tables import INPUTS, MIXERS, SCALINGS


def check_of(field: dataclasses.Field[Any], kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts a value of `field` to the plain Python type `kind`, or raises `ConfigError`."""
    check = _check_of(field, kind)
    return (lambda value: None if value is None else check(value)) if type(None) in get_args(kind) else check


def _check_of(field: dataclasses.Field[Any], kind: Any) -> Callable[[Any], Any]:
    name, arguments = field.name, get_args(kind)
    if choices := field.metadata.get("choices"):
        return functools.partial(_choice, name, choices)
    if get_origin(kind) is Literal:
        return functools.partial(_choice, name, arguments)
    if get_origin(kind) is Mapping:
        return functools.partial(checked_overrides, name)
    if get_origin(kind) is tuple and str in arguments:
        return functools.partial(checked_types, name)
    if get_origin(kind) is tuple and float in arguments:
        return functools.partial(_numbers, field)
    if get_origin(kind) is tuple:
        return functools.partial(_choices, name, get_args(arguments[0]))
    if kind is bool:
        return functools.partial(_switch, name)
    return functools.partial(_number if float in (kind, *arguments) else _whole_number, field)


def _choice(name: str, choices: Collection[str], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} is {shown(value)}; it should be one of {', '.join(choices)}.")
    return str(value)


def _choices(name: str, choices: tuple[str, ...], value: Any) -> tuple[str, ...]:
    """Return the values in the order of `choices`, so that two configurations with the same values are equal."""
    given = list(value) if isinstance(value, list | tuple) else [None]
    for choice in given:
        if not isinstance(choice, str) or choice not in choices:
            raise ConfigError(f"{name} is {shown(value)}; it should list some of {', '.join(choices)}.")
    return tuple(choice for choice in choices if choice in given)


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; it should be true or false.")
    return value


def _whole_number(field: dataclasses.Field[Any], value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except Exception:  # noqa: BLE001 - `__index__` of any object may raise anything
        raise ConfigError(f"{field.name} is {shown(value)}; it should be a whole number.") from None
    limits = field.metadata.get("range", COUNT)
    if not limits.holds(number):
        raise ConfigError(f"{field.name} is {shown(number)}; it should be {limits.text}.")
    return number


def _number(field: dataclasses.Field[Any], value: Any) -> float:
    limits = field.metadata.get("range")
    assert limits is not None, f"define {field.name} by `number` in config/transformer_config.py, with its range"
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)
    except Exception:  # noqa: BLE001 - `__float__` of any object may raise anything
        raise ConfigError(f"{field.name} is {shown(value)}; it should be a number, {limits.text}.") from None
    if not limits.holds(number):
        raise ConfigError(f"{field.name} is {number}; it should be {limits.text}.")
    return number


def _numbers(field: dataclasses.Field[Any], value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{field.name} is {shown(value)}; it should be a list of numbers.")
    return tuple(_number(field, each) for each in value)


def check_together(config: Any) -> None:
    """Raise `ConfigError` if fields of a `TransformerConfig` (`Any`, to avoid an import cycle) do not fit together."""
    checks = (
        _check_variants,
        _check_pooling,
        _check_vocabularies,
        _check_heads,
        _check_latent,
        _check_positions,
        _check_scaling,
        _check_relative,
    )
    for check in (*checks, _check_router, _check_ends, _check_tokens):
        check(config)


def _check_variants(config: Any) -> None:
    if config.class_token and not config.reads_pixels:
        raise ConfigError("class_token is true, but patch_size is absent; set patch_size too.")
    for stack in config.stacks:
        INPUTS[config.input_kinds[stack]].check(config)
    MIXERS[config.mixer].check(config)


def _check_pooling(config: Any) -> None:
    if not config.is_pooled or config.pooling not in ("eos", "largest"):
        return
    if not config.token_inputs:
        raise ConfigError(f"pooling is {config.pooling!r}, but the input has no tokens; use pooling 'first'.")
    if config.pooling == "eos" and config.eos_id is None:
        raise ConfigError("pooling is 'eos', but there is no eos_id; set eos_id, or use pooling 'last'.")


def _check_vocabularies(config: Any) -> None:
    for stack, name in (("encoder", "source_vocab_size"), ("decoder", "target_vocab_size")):
        reads_tokens = stack in config.stacks and INPUTS[config.input_kinds[stack]].axes is None
        if reads_tokens and getattr(config, name) is None:
            raise ConfigError(f"{name} is missing: the architecture {config.architecture!r} needs it.")


def _check_heads(config: Any) -> None:
    if config.attention_head_dim is None and config.embed_dim % config.num_heads:
        raise ConfigError(
            f"embed_dim is {config.embed_dim} and num_heads is {config.num_heads}; expected a multiple of num_heads, "
            f"such as {config.embed_dim // config.num_heads * config.num_heads or config.num_heads}."
        )
    if config.num_heads % config.key_value_heads:
        raise ConfigError(
            f"num_key_value_heads is {config.num_key_value_heads}, but num_heads is {config.num_heads}; expected a "
            "divisor of num_heads."
        )
    whole = (config.key_value_heads, config.attention_dim) == (config.num_heads, config.embed_dim)
    if config.projection == "shared-per-head" and not whole:
        raise ConfigError(
            "projection is 'shared-per-head', which splits embed_dim into heads; num_key_value_heads and "
            "attention_head_dim should be absent."
        )
    if config.projection == "shared-per-head" and config.query_key_norm_over == "projection":
        raise ConfigError(
            "query_key_norm_over is 'projection', but projection 'shared-per-head' projects each head separately; "
            "expected 'head'."
        )


def _check_latent(config: Any) -> None:
    alone = [name for name in ("q_lora_rank", "value_head_dim") if getattr(config, name) is not None]
    if config.kv_lora_rank is None:
        if alone:
            raise ConfigError(
                f"{alone[0]} is {getattr(config, alone[0])}, which only latent attention has; set kv_lora_rank too."
            )
        return
    needed: dict[str, Any] = {"positions": "rotary", "projection": "full", "qkv_bias": False, "query_key_norm": False}
    found = {name: getattr(config, name) for name in needed if getattr(config, name) != needed[name]}
    is_cut = config.rotary_dim is not None and config.rotary_dim < config.head_dim
    if found or not is_cut or config.key_value_heads != config.num_heads or config.architecture == "encoder-decoder":
        raise ConfigError(
            f"kv_lora_rank is {config.kv_lora_rank}, but latent attention needs one stack, positions 'rotary', "
            "rotary_dim < head_dim, projection 'full', num_key_value_heads = num_heads, no qkv_bias and no "
            "query_key_norm."
        )


def _check_positions(config: Any) -> None:
    if config.positions == "rotary" and (config.rotated_dim % 2 or config.rotated_dim > config.head_dim):
        name = "head_dim" if config.rotary_dim is None else "rotary_dim"
        raise ConfigError(
            f"{name} is {config.rotated_dim}, but rotary positions rotate pairs of features; expected an even number"
            f"{'' if config.rotary_dim is None else f', at most {config.head_dim} (head_dim)'}."
        )
    added = ("learned", "sinusoidal")
    both = config.positions in added and config.has_encoder and config.has_decoder
    if config.encoder_positions != "as-decoder" and not both:
        raise ConfigError(
            f"encoder_positions is {config.encoder_positions!r}; expected 'as-decoder', because architecture is "
            f"{config.architecture!r} and positions is {config.positions!r}."
        )
    sinusoidal = "sinusoidal" in (config.positions, config.encoder_positions)
    if sinusoidal and config.sinusoidal_timescales == "inclusive" and config.embed_dim < 4:
        raise ConfigError(
            f"embed_dim is {config.embed_dim}, but sinusoidal_timescales 'inclusive' needs at least two timescales of "
            "two features each; expected an even embed_dim of at least 4."
        )
    if sinusoidal and config.embed_dim % 2:
        raise ConfigError(
            f"embed_dim is {config.embed_dim}, but sinusoidal positions pair each sine with a cosine; "
            "expected an even number."
        )


def _check_scaling(config: Any) -> None:
    if not config.rotary_slow_turns < config.rotary_fast_turns:
        raise ConfigError(
            f"rotary_slow_turns is {config.rotary_slow_turns}; it should be less than rotary_fast_turns, "
            f"{config.rotary_fast_turns}."
        )
    if config.positions == "rotary":
        SCALINGS[config.rotary_scaling].check(config)


def _check_relative(config: Any) -> None:
    # In an encoder, half of the buckets are for each direction. In each direction, half of the buckets hold one
    # distance each.
    least = 4 if config.has_encoder else 2
    exact = max(config.relative_buckets, least) // (2 if config.has_decoder else 4)
    enough = config.relative_buckets >= least and config.relative_max_distance > exact
    if config.relative_bias and config.positions not in ("learned", "sinusoidal"):
        raise ConfigError(
            f"relative_bias is true and positions is {config.positions!r}; expected positions 'learned' or "
            "'sinusoidal', or 'relative' without relative_bias."
        )
    if config.has_relative_bias and not enough:
        raise ConfigError(
            f"relative_buckets is {config.relative_buckets} and relative_max_distance is "
            f"{config.relative_max_distance}; expected at least {least} buckets and a distance greater than {exact}."
        )


def _check_router(config: Any) -> None:
    experts, groups = config.num_experts, config.router_groups
    if not experts:
        return
    if config.topk_groups > groups or experts % groups or (groups > 1 and experts // groups < 2):
        raise ConfigError(
            f"router_groups is {groups}, topk_groups is {config.topk_groups} and num_experts is {experts}; expected "
            "groups of equal size with at least two experts, and topk_groups at most router_groups."
        )
    open_to_choice = experts // groups * config.topk_groups
    if config.experts_per_token > open_to_choice:
        raise ConfigError(
            f"experts_per_token is {config.experts_per_token}, but the number of experts to choose from is "
            f"{open_to_choice}; expected at most {open_to_choice}."
        )


def _check_ends(config: Any) -> None:
    both = config.architecture == "encoder-decoder" and config.source_vocab_size == config.target_vocab_size
    if config.shared_embedding and not both:
        raise ConfigError(
            f"shared_embedding is true, source_vocab_size is {config.source_vocab_size} and target_vocab_size is "
            f"{config.target_vocab_size}; only an encoder-decoder with equal vocabulary sizes can share its embedding."
        )
    if config.is_pooled and config.architecture == "encoder-decoder":
        raise ConfigError(
            f"head is {config.head!r}, which needs a single stack, but architecture is 'encoder-decoder'."
        )
    for name, given in (("num_token_types", config.num_token_types), ("head", config.head == "hidden")):
        if given and config.architecture != "encoder":
            raise ConfigError(
                f"{name} is {getattr(config, name)!r} and architecture is {config.architecture!r}; only architecture "
                f"'encoder' allows this {name}."
            )
    if config.head_transform and (config.head not in ("logits", "classes") or config.norm == "batch"):
        raise ConfigError(
            f"head_transform is true, head is {config.head!r} and norm is {config.norm!r}; the transform needs head "
            "'logits' or 'classes', and a norm other than 'batch'."
        )
    if config.branches != "sequential" and (config.norm_position != "pre" or config.architecture == "encoder-decoder"):
        raise ConfigError(
            f"branches is {config.branches!r}, norm_position is {config.norm_position!r} and architecture is "
            f"{config.architecture!r}; parallel branches need a single stack and norm_position 'pre'."
        )
    if not config.attention_norm and (config.norm_position != "pre" or config.branches != "sequential"):
        raise ConfigError(
            f"attention_norm is false, norm_position is {config.norm_position!r} and branches is {config.branches!r}; "
            "a layer without this norm needs norm_position 'pre' and branches 'sequential'."
        )
    if not config.feed_forward_dim and (config.num_experts or config.branches != "sequential"):
        raise ConfigError(
            f"feed_forward_dim is 0, num_experts is {config.num_experts} and branches is {config.branches!r}; without "
            "a feed-forward, num_experts should be 0 and branches 'sequential'."
        )
    if config.norm == "layer-unbiased" and config.embed_dim == 1:
        raise ConfigError("embed_dim is 1, but norm 'layer-unbiased' divides by embed_dim − 1; expected at least 2.")


def _check_tokens(config: Any) -> None:
    if not config.token_inputs:
        return
    vocabularies = [config.stack_vocab_size(config.input_stack(name)) for name in config.token_inputs]
    for name, sizes in (("pad_id", vocabularies), ("bos_id", vocabularies[-1:]), ("eos_id", vocabularies[-1:])):
        token = getattr(config, name)
        if token is not None and token >= min(sizes):
            raise ConfigError(f"{name} is {token}, outside the vocabulary of {min(sizes)} tokens.")
