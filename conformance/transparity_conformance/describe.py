"""A configuration for people: its parameters, its taps, and its architecture as a Mermaid diagram."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from rich import box
from rich.table import Table

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import tap_shapes

BATCH = -1
LENGTHS = {"source": -2, "target": -3, "tokens": -4}
"""Stand-ins for what a configuration leaves open: no size is negative."""

OPEN = {BATCH: "batch", -2: "source", -3: "target", -4: "tokens"}

NORMS = {"layer": "LayerNorm", "layer-unbiased": "LayerNorm (over n − 1, eps outside)", "batch": "BatchNorm"}


def parameters_table(config: TransformerConfig) -> Table:
    """Every parameter with its shape, layers of one shape in one line; their number at the end."""
    shapes = parameter_shapes(config)
    total = sum(math.prod(shape) for shape in shapes.values())
    table = _table("parameter", "shape", "numbers")
    for name, shape, layers in _by_layer(shapes):
        table.add_row(name, _shown(shape), f"{math.prod(shape) * layers:,}")
    table.add_section()
    table.add_row("all", "", f"{total:,}")
    return table


def taps_table(config: TransformerConfig) -> Table:
    """Every tap in the order of the forward pass, layers in one line."""
    lengths = {name: LENGTHS[name] for name in config.input_names}
    table = _table("tap", "shape")
    for name, shape, _ in _by_layer(tap_shapes(config, BATCH, **lengths)):
        table.add_row(name, _shown(shape))
    return table


def mermaid(config: TransformerConfig) -> str:
    """The architecture as a flowchart."""
    lines = ["flowchart TD"]
    for read in config.input_names:
        lines += _stack(config, config.input_stack(read), read)
    last = config.input_stack(config.input_names[-1])
    lines += [f'    {last}_output --> head["linear, to {config.vocab_size:,} logits"]', "    head --> logits([logits])"]
    return "\n".join(lines) + "\n"


def _stack(config: TransformerConfig, stack: str, read: str) -> Iterable[str]:
    layers = config.stack_num_layers(stack)
    scale = " · √embed_dim" if config.embedding_scale == "embed_dim" else ""
    size = f"{config.stack_vocab_size(stack):,} × {config.embed_dim}"
    node = f"{stack}_embedding"
    yield f'    {read}([{read}]) --> {node}["token embedding {size}{scale}<br/>+ {config.positions} positions"]'
    if layers:
        yield f'    subgraph {stack}_layer["{layers} {stack} layer{"s" * (layers != 1)}"]'
        yield from (f"        {line}" for line in _layer(config, stack, read))
        yield "    end"
        yield f"    {node} --> {stack}_x"
        node = f"{stack}_{_end(config)}"
        if read == "target":
            behind = "memory_norm" if config.memory_norm else "cross"
            yield f"    encoder_output -->|memory| {stack}_{behind}"
    if config.final_norm:
        yield f'    {node} --> {stack}_final_norm["{NORMS[config.norm]}"]'
        node = f"{stack}_final_norm"
    yield f'    {node} --> {stack}_output["{stack}.output"]'


def _layer(config: TransformerConfig, stack: str, read: str) -> Iterable[str]:
    """The nodes of a layer and what leads from one to the next; a residual goes past its sublayer."""
    width = f"{config.embed_dim} → {config.feed_forward_dim} → {config.embed_dim}"
    sublayers = {"self": f"self-attention<br/>{_attention(config, _mask(config, stack))}"}
    if read == "target":
        sublayers["cross"] = f"cross-attention<br/>{_attention(config, 'the padding')}"
    sublayers["feed"] = f"feed-forward<br/>{width}, {config.activation}"
    before = f"{stack}_x"
    yield f'{before}(("x"))'
    for name, says in sublayers.items():
        node, norm, add = f"{stack}_{name}", f"{stack}_{name}_norm", f"{stack}_{name}_add"
        yield f'{node}["{says}"]'
        yield f'{norm}["{NORMS[config.norm]}"]'
        yield f'{add}(("+"))'
        if name == "cross" and config.memory_norm:
            yield f'{stack}_memory_norm["{NORMS[config.norm]}"] --> {node}'
        pre = config.norm_position == "pre"
        yield " --> ".join([before, norm, node, add] if pre else [before, node, add, norm])
        yield f"{before} -. residual .-> {add}"
        before = add if pre else norm


def _end(config: TransformerConfig) -> str:
    return "feed_add" if config.norm_position == "pre" else "feed_norm"


def _attention(config: TransformerConfig, hidden: str) -> str:
    heads = f"{config.num_heads} heads of {config.head_dim}"
    shared = ", one projection for all heads" if config.projection == "shared-per-head" else ""
    return f"{heads}, ÷ √{config.attention_scale}{shared}<br/>{hidden} hidden by {config.mask_value:g}"


def _mask(config: TransformerConfig, stack: str) -> str:
    if stack == "encoder":
        return "the padding"
    return "the future" if config.target_mask == "causal" else "the future and the padding"


def _by_layer(shapes: Mapping[str, tuple[int, ...]]) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """Names with their shapes, the layers of a stack folded into one, and how many there are."""
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column == "numbers" else "left", no_wrap=column != "shape")
    return table
