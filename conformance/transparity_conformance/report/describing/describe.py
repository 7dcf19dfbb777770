"""A description of a configuration: its parameters, its taps, and its architecture as a Mermaid diagram."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from rich.table import Table

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import tap_shapes
from transparity_conformance.report.terminal import plain_table

BATCH = -1
LENGTHS = {"source": -2, "target": -3, "tokens": -4, "pixels": -4}
"""Placeholders of open sizes; they are negative, so that they differ from all real sizes."""

OPEN = {BATCH: "batch", -2: "source", -3: "target", -4: "tokens"}

NORMS = {
    "layer": "LayerNorm",
    "layer-unbiased": "LayerNorm (over n − 1, eps outside)",
    "batch": "BatchNorm",
    "rms": "RMSNorm",
}

HEADS = {
    "logits": "linear, to {size:,} logits",
    "hidden": "no head",
    "pooled": "",
    "classes": "linear, to {size:,} classes",
}
POOLED = {
    "first": "the first position",
    "mean": "the mean of visible positions",
    "last": "the last visible position",
    "eos": "the position of the first end token",
    "largest": "the first position of the largest token",
}


def parameters_table(config: TransformerConfig) -> Table:
    """Return a table of all parameters with their shapes, equal layers in one row, and the total."""
    shapes = parameter_shapes(config)
    total = sum(math.prod(shape) for shape in shapes.values())
    table = _table("parameter", "shape", "numbers")
    for name, shape, layers in _by_layer(shapes):
        table.add_row(name, _shown(shape), f"{math.prod(shape) * layers:,}")
    table.add_section()
    table.add_row("all", "", f"{total:,}")
    return table


def taps_table(config: TransformerConfig) -> Table:
    """Return a table of all taps in the order of the forward pass, equal layers in one row."""
    lengths = {name: LENGTHS[name] for name in config.input_names}
    table = _table("activation", "shape")
    for name, shape, _ in _by_layer(tap_shapes(config, BATCH, **lengths)):
        table.add_row(name, _shown(shape))
    return table


def mermaid(config: TransformerConfig) -> str:
    lines = ["flowchart TD"]
    for read in config.input_names:
        lines += _stack(config, config.input_stack(read), read)
    last = config.input_stack(config.input_names[-1])
    lines += [f'    {last}_output --> head["{_head(config)}"]', "    head --> logits([logits])"]
    return "\n".join(lines) + "\n"


def _stack(config: TransformerConfig, stack: str, read: str) -> Iterable[str]:
    layers = config.stack_num_layers(stack)
    scale = " · √embed_dim" if config.embedding_scale == "embed_dim" else ""
    scale += f" · {config.embedding_multiplier:g}" if config.embedding_multiplier != 1 else ""
    what, rows = _embedded(config, stack)
    size = f"{rows:,} × {config.embed_dim}"
    node = f"{stack}_embedding"
    positions = config.for_stack(stack).positions
    added = [f"{positions} positions"] if positions in ("learned", "sinusoidal") else []
    added += ["a class token"] if config.class_token else []
    added += [f"{config.num_token_types} token types"] if config.num_token_types else []
    additions = "".join(f"<br/>+ {name}" for name in added)
    table = ", the encoder's" if config.shared_embedding and stack == "decoder" else ""
    yield f'    {read}([{read}]) --> {node}["{what} embedding {size}{table}{scale}{additions}"]'
    for name in config.further_inputs if read != "target" else ():
        yield f"    {name}([{name}]) --> {node if name == 'token_types' else f'{stack}_self'}"
    if config.embedding_norm:
        yield f'    {node} --> {stack}_embedding_norm["{_norm(config)}"]'
        node = f"{stack}_embedding_norm"
    if layers:
        yield f'    subgraph {stack}_layer["{layers} {stack} layer{"s" * (layers != 1)}"]'
        yield from (f"        {line}" for line in _layer(config, stack, read))
        yield "    end"
        yield f"    {node} --> {stack}_x"
        node = f"{stack}_{'feed_norm' if config.norm_position == 'post' else 'feed_add'}"
        if read == "target":
            behind = "memory_norm" if config.memory_norm else "cross"
            yield f"    encoder_output -->|memory| {stack}_{behind}"
    if config.final_norm:
        yield f'    {node} --> {stack}_final_norm["{_norm(config)}"]'
        node = f"{stack}_final_norm"
    yield f'    {node} --> {stack}_output["{stack}.output"]'


def _embedded(config: TransformerConfig, stack: str) -> tuple[str, int]:
    """Return a name for a stack's inputs, and the size of the vocabulary, the patches or the frames."""
    if config.reads_pixels:
        return "patch", config.patch_dim
    if config.reads_frames and stack == "encoder":
        return "two convolutions, frame", config.mel_bins or 0
    return "token", config.stack_vocab_size(stack)


def _layer(config: TransformerConfig, stack: str, read: str) -> Iterable[str]:
    width, gated = f"{config.embed_dim} → {config.feed_forward_dim} → {config.embed_dim}", ", gated" * config.gated
    experts = f"{config.experts_per_token} of {config.num_experts} experts, " if config.num_experts else ""
    kinds = {own.mixer for own in config.layer_kinds.values()}
    sublayers = {"self": f"self-attention<br/>{_attention(config, _mask(config, stack))}{_self_attention_only(config)}"}
    if kinds != {"attention"}:
        others = f"or {sublayers['self']}" if "attention" in kinds else ""
        sublayers["self"] = f"{_recurrence(config)}<br/>{others}".removesuffix("<br/>")
    if read == "target":
        sublayers["cross"] = f"cross-attention<br/>{_attention(config, 'the padding')}"
    if any(own.feed_forward_dim for own in config.layer_kinds.values()):
        sublayers["feed"] = f"feed-forward<br/>{experts}{width}, {config.activation}{gated}"
    before = f"{stack}_x"
    yield f'{before}(("x"))'
    for name, text in sublayers.items():
        node, norm, add = f"{stack}_{name}", f"{stack}_{name}_norm", f"{stack}_{name}_add"
        yield f'{node}["{text}"]'
        yield f'{norm}["{_norm(config)}"]'
        by = f" {config.residual_multiplier:g} ×" if config.residual_multiplier != 1 else ""
        yield f'{add}(("+{by}"))'
        if name == "cross" and config.memory_norm:
            yield f'{stack}_memory_norm["{_norm(config)}"] --> {node}'
        if name == "feed" and config.branches != "sequential":
            given = f"{stack}_self_norm" if config.branches == "parallel-one-norm" else f"{stack}_x --> {norm}"
            yield f"{given} --> {node} --> {add}"
            yield f"{before} -. residual .-> {add}"
            continue
        if config.norm_position == "sandwich":
            yield f'{node}_post_norm["{_norm(config)}"]'
        flow = {
            "pre": [before, norm, node, add] if name != "self" or config.attention_norm else [before, node, add],
            "post": [before, node, add, norm],
            "post-branch": [before, node, norm, add],
            "sandwich": [before, norm, node, f"{node}_post_norm", add],
        }[config.norm_position]
        yield " --> ".join(flow)
        yield f"{before} -. residual .-> {add}"
        before = flow[-1]


def _norm(config: TransformerConfig) -> str:
    return NORMS[config.norm] + (" · (1 + weight)" if config.norm_gain == "one-plus-weight" else "")


def _head(config: TransformerConfig) -> str:
    tied = ", tied to the token embedding" if config.tied_head and config.head == "logits" else ""
    capped = (
        ""
        if config.final_softcap is None or config.head != "logits"
        else f"<br/>softcapped at {config.final_softcap:g}"
    )
    transform = f"linear, {config.activation}, {_norm(config)}, then " if config.head_transform else ""
    pooled = [POOLED[config.pooling]] * config.is_pooled + [f"linear, {config.pooler}"] * config.has_pooler
    made = transform + HEADS[config.head].format(size=config.head_size) + tied + capped
    return ", ".join([*pooled, made] if made else pooled)


def _attention(config: TransformerConfig, masked: str) -> str:
    heads = f"{config.num_heads} heads of {config.head_dim}"
    fewer = f", {config.key_value_heads} key-value heads" if config.key_value_heads < config.num_heads else ""
    shared = ", one projection for all heads" if config.projection == "shared-per-head" else ""
    divided = "" if config.attention_scale == "none" else f", ÷ √{config.attention_scale}"
    times = "" if config.attention_multiplier == 1 else f", × {config.attention_multiplier:g}"
    held = "" if config.attention_softcap is None else f", softcapped at {config.attention_softcap:g}"
    return f"{heads}{fewer}{divided}{times}{shared}{held}<br/>{masked} masked with {config.mask_value:g}"


def _recurrence(config: TransformerConfig) -> str:
    keys, values = config.recurrent_key_dim, config.recurrent_value_dim
    states = f"{config.recurrent_heads} states of {keys} by {values}, {config.recurrent_key_heads} key heads"
    name = "gated delta rule" if "gated-delta" in {own.mixer for own in config.layer_kinds.values()} else "state space"
    return f"{name}<br/>{states}, convolutions over {config.convolution_width} positions"


def _self_attention_only(config: TransformerConfig) -> str:
    """Return features that only self-attention has, such as positions and a window."""
    inside = config.positions in ("rotary", "relative", "alibi")
    known = [f"{config.positions} positions"] if inside else []
    known += ["relative positions"] if config.relative_bias else []
    known += [f"queries and keys normalized over each {config.query_key_norm_over}"] if config.query_key_norm else []
    if config.sliding_window is not None:
        chunks = " of its own chunk" if config.window_kind == "chunked" else ""
        known.append(f"sees {config.sliding_window} positions{chunks}")
    known += ["an output gate"] if config.attention_gate else []
    if config.query_temperature:
        known.append(f"query temperature {config.query_temperature:g} from position {config.query_temperature_length}")
    for kind, overrides in config.layer_overrides.items():
        known.append(f"{kind}: " + ", ".join(f"{name} {value}" for name, value in overrides.items()))
    return "".join(f"<br/>{name}" for name in known)


def _mask(config: TransformerConfig, stack: str) -> str:
    if stack == "encoder":
        return "the padding"
    return "the future" if config.decoder_mask == "causal" else "the future and the padding"


def _by_layer(shapes: Mapping[str, tuple[int, ...]]) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """Yield names, shapes and numbers of layers; the layers of a stack share one name."""
    layers: dict[str, set[int]] = {}
    folded: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        found = re.search(r"\.layers\.(\d+)\.", name)
        general = name if found is None else name.replace(found[0], ".layers.*.", 1)
        folded.setdefault(general, shape)
        layers.setdefault(general, set()).add(int(found[1]) if found else 0)
    for name, shape in folded.items():
        count = len(layers[name])
        last = "0" if count == 1 else f"0…{count - 1}"
        yield name.replace(".*.", f".{last}."), shape, count


def _shown(shape: tuple[int, ...]) -> str:
    sizes = ", ".join(OPEN.get(size, f"{size:,}") for size in shape)
    return f"({sizes})"


def _table(*columns: str) -> Table:
    table = plain_table()
    for column in columns:
        table.add_column(column, justify="right" if column == "numbers" else "left", no_wrap=column != "shape")
    return table
