"""The layouts in which ports store a parameter: transposed, fused, packed by heads, or permuted for RoPE."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.running.adapters.notation import Shapes, size_of, sizes_of

Rows = tuple[str, str]
"""(steps that select a parameter's rows in a matrix, number of rows of the matrix)."""


KERNELS = {"patch_projection": "C*P*P", "first_convolution": "3*M", "second_convolution": "3*D"}
"""The number of inputs of each output feature in convolutions and patch projections."""

LAST_AXIS_FIRST = {"patch_projection": ".permute(3, 2, 0, 1)", "first_convolution": ".permute(2, 1, 0)"}
LAST_AXIS_FIRST["second_convolution"] = LAST_AXIS_FIRST["first_convolution"]
"""Steps that convert flax's layout of convolution kernels to PyTorch's."""

DELTA = (("query", "key", "value", "gate"), ("query", "key", "value"), ("beta", "decay"), ("decay", "beta"))
SPACE = (("gate", "value", "key", "query", "decay"), ("value", "key", "query"), ("gate", "value"), ("key", "query"))
"""The orders in which ports fuse linear maps: DELTA for gated delta networks, SPACE for Mamba-2."""


def columns_of(parameter: str, config: TransformerConfig) -> str:
    role = parameter.split(".")[-2]
    if ".recurrence." in parameter:
        return "R*V" if role == "output" else str(config.convolution_width) if "convolution" in role else "D"
    if role in KERNELS:
        return KERNELS[role]
    if config.projection == "shared-per-head" and parameter.endswith(("query.weight", "key.weight", "value.weight")):
        return "H"
    if parameter.endswith("relative_bias.weight"):
        return "N"
    is_output = parameter.endswith("attention.output.weight")
    return "N*H" if is_output else "F" if parameter.endswith("down.weight") else "D"


def matrices(name: str, shape: tuple[int, ...], columns: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield (line, rows) for each view of a tensor as a matrix: the line of the adapter, and the number of rows.
    `columns` is the number of columns."""
    into = size_of(columns, sizes)
    if len(shape) == 1:
        yield from [(f"{name}.view(-1, {columns})", 1)] * (shape[0] == into)
        return
    if len(shape) == 2:
        yield from [(name, shape[0])] * (shape[1] == into)
        yield from [(f"{name}.T", shape[1])] * (shape[0] == into)
        return
    for order in itertools.permutations(range(len(shape))) if 2 < len(shape) < 6 else ():
        axes = [shape[axis] for axis in order]
        cuts = [cut for cut in range(1, len(axes)) if math.prod(axes[cut:]) == into and math.prod(axes[cut:]) != 1]
        # Skip orders that only move an axis of size 1, or that merge axes in an order that no port uses.
        is_merged = cuts and all(list(part) == sorted(part) for part in (order[: cuts[0]], order[cuts[0] :]))
        if is_merged and all(shape[axis] > 1 or axis == place for place, axis in enumerate(order)):
            moved = "" if list(order) == sorted(order) else f".permute({', '.join(map(str, order))})"
            yield f"{name}{moved}.view(-1, {columns})", math.prod(axes) // into


def vectors(name: str, shape: tuple[int, ...]) -> tuple[str, int]:
    return (name if len(shape) == 1 else f"{name}.view(-1)"), math.prod(shape)


def _block(number: int, size: str) -> str:
    first, last = (f"{count}*{size}" if count > 1 else size if count else "0" for count in (number, number + 1))
    return f"[{first}:{last}]"


def rows_of(parameter: str, config: TransformerConfig) -> list[Rows]:
    """Return the ways in which a matrix may contain the rows of a linear map, the simplest first."""
    scope = parameter.rpartition(".")[0].rpartition(".")
    role, is_shared = scope[2], config.projection == "shared-per-head"
    if ".recurrence." in parameter:
        return _recurrent(role)
    if config.kv_lora_rank and ".self_attention." in parameter:
        return _latent(role, config)
    if role == "gate" and ".self_attention." in parameter:
        return [
            ("", "N*H"),
            *((f".view(N, 2, H, -1)[:, {half}]", "2*N*H") for half in (1, 0)),
            ("[N*H:2*N*H]", "2*N*H"),
        ]
    if role in ("query", "key", "value"):
        return [("", "H"), *((_block(j, "H"), "3*H") for j in _parts_of(role))] if is_shared else _heads(role, config)
    if role in ("gate", "up") and config.gated:
        blocks = [(_block(half, "F"), "2*F") for half in (0, 1)]
        return [("", "F"), *blocks, *((f".view(F, 2, -1)[:, {half}]", "2*F") for half in (0, 1))]
    return [("", {"up": "F", "down": "D", "output": "D", "pooler": "D"}.get(role, ""))]


def _parts_of(role: str) -> list[int]:
    """Return the indices at which a fused map may contain `role`, the most likely first."""
    part = ("query", "key", "value").index(role)
    return [part, *(other for other in range(3) if other != part)]


def _heads(role: str, config: TransformerConfig) -> list[Rows]:
    heads, is_grouped = ("N" if role == "query" else "K"), config.key_value_heads != config.num_heads
    order = _parts_of(role)
    found = [("", f"{heads}*H"), (f".view(H, {heads}, -1).permute(1, 0, 2)", f"{heads}*H")]
    if not is_grouped:
        found += [(_block(j, "N*H"), "3*N*H") for j in order]
        found += [(f".view(N, 3, H, -1)[:, {j}]", "3*N*H") for j in order]
        found += [(f".view(N, H, 3, -1)[:, :, {j}]", "3*N*H") for j in order]
        found += [(f".view(3, H, N, -1)[{j}].permute(1, 0, 2)", "3*N*H") for j in order]
    else:
        every = "N*H+2*K*H"
        starts = {"query": ["0", "2*K*H", "K*H"], "key": ["N*H", "N*H+K*H", "0", "K*H"]}
        begin = starts.get(role, ["N*H+K*H", "N*H", "K*H", "0"])
        found += [(f"[{start}:{start}+{heads}*H]".replace("[0:0+", "[0:"), every) for start in begin]
        taken = {"query": ["0:N/K", "2:N/K+2", "1:N/K+1"], "key": ["N/K", "N/K+1", "0", "1"]}
        slots = taken.get(role, ["N/K+1", "N/K", "1", "0"])
        found += [(f".view(K, N/K+2, H, -1)[:, {slot}]", every) for slot in slots]
    if role == "query" and config.attention_gate:
        found += [*((f".view(N, 2, H, -1)[:, {half}]", "2*N*H") for half in (0, 1)), ("[0:N*H]", "2*N*H")]
    if role != "query":
        halves = [order[0] - 1, 2 - order[0]]
        found += [(_block(j, "K*H"), "2*K*H") for j in halves]
        found += [(f".view(K, 2, H, -1)[:, {j}]", "2*K*H") for j in halves]
        found += [(f".view(K, H, 2, -1)[:, :, {j}]", "2*K*H") for j in halves]
    return found


def _latent(role: str, config: TransformerConfig) -> list[Rows]:
    rank, key, value = config.kv_lora_rank or 0, config.projected_key_dim, config.value_dim
    both, down = f"K*{key + value}", f"{rank + config.rotated_dim}"
    joined = {
        "key": (f".view(K, {key + value}, -1)[:, 0:{key}]", both),
        "value": (f".view(K, {key + value}, -1)[:, {key}:{key + value}]", both),
        "key_value_latent": (f"[0:{rank}]", down),
        "key_rotary": (f"[{rank}:{down}]", down),
    }
    return [("", ""), *([joined[role]] if role in joined else [])]


def _recurrent(role: str) -> list[Rows]:
    """Return the ways in which a matrix may contain a recurrence's rows: not fused, or fused map by map or by key
    heads."""
    # G: key heads, R: value heads, S and V: width of a key head and of a value head
    kind = role.removesuffix("_convolution")
    whole = dict.fromkeys(("query", "key"), "G*S") | dict.fromkeys(("value", "gate"), "R*V")
    whole |= dict.fromkeys(("decay", "beta"), "R")
    if kind not in whole:
        return [("", "")]
    orders = [order for order in (*DELTA, *SPACE) if kind in order]
    if role != kind:
        orders = [order for order in orders if set(order) == {"query", "key", "value"}]
    share = dict.fromkeys(("query", "key"), "S") | dict.fromkeys(("value", "gate"), "R/G*V")
    share |= dict.fromkeys(("decay", "beta"), "R/G")
    together = {order: "+".join(whole[each] for each in order) for order in orders}
    found = [("", whole[kind]), *((f"[{_cut(whole, order, kind)}]", rows) for order, rows in together.items())]
    for order in [order for order in DELTA if role == kind and kind in order]:
        steps = f".view(G, {'+'.join(share[each] for each in order)}, -1)[:, {_cut(share, order, kind)}]"
        found.append((steps, together[order]))
    return found


def _cut(widths: dict[str, str], order: Sequence[str], kind: str) -> str:
    before = [widths[each] for each in order[: order.index(kind)]]
    return f"{'+'.join(before) or '0'}:{'+'.join([*before, widths[kind]])}"


NEIGHBOURS, HALVES = ".view({}, H/2, 2, -1).permute(0, 2, 1, 3)", ".view({}, 2, H/2, -1).permute(0, 2, 1, 3)"
"""Steps that reorder rotated rows: from neighboring pairs (as in Meta's code) to halves, and from halves to pairs."""


def rotations(config: TransformerConfig) -> list[str]:
    """Return the steps that may reorder rotated features; `{}` stands for the number of heads."""
    turned = config.rotary_dim or config.head_dim
    if config.positions != "rotary" or turned != config.head_dim or config.head_dim % 2:
        return [""]
    return ["", NEIGHBOURS if config.rope_layout == "halves" else HALVES]


def weights(parameter: str, config: TransformerConfig, shapes: Shapes) -> Iterator[str]:
    sizes, (ours, *others) = sizes_of(config), parameter_shapes(config)[parameter]
    columns, wide = columns_of(parameter, config), math.prod(others)
    columns = columns if size_of(columns, sizes) == wide else str(wide)
    into = ["", ".view(-1, H, N).permute(0, 2, 1)"] if parameter.endswith("attention.output.weight") else [""]
    role = parameter.split(".")[-2]
    if role == "patch_projection":  # the channels may be last
        into = ["", ".view(-1, P, P, C).permute(0, 3, 1, 2)"]
    for steps, total in rows_of(parameter, config):
        rows = size_of(total, sizes) if steps else ours
        for name, shape in shapes.items():
            for base, count in matrices(name, shape, columns, sizes):
                if count == rows:
                    yield from (f"{base}{steps}{moved}" for moved in into)
    if role in LAST_AXIS_FIRST:
        axes = 4 if role == "patch_projection" else 3
        yield from (
            f"{name}{LAST_AXIS_FIRST[role]}.view(-1, {columns})"
            for name, shape in shapes.items()
            if len(shape) == axes and shape[-1] == ours and math.prod(shape) == ours * size_of(columns, sizes)
        )


def biases(parameter: str, config: TransformerConfig, shapes: Shapes) -> Iterator[str]:
    sizes, ours = sizes_of(config), parameter_shapes(config)[parameter][0]
    for steps, total in rows_of(parameter, config):
        rows = size_of(total, sizes) if steps else ours
        for name, shape in shapes.items():
            base, count = vectors(name, shape)
            if count == rows:
                yield f"{base}{steps}"
