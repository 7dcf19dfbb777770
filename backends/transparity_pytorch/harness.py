"""The PyTorch column's `transparity.protocol.Harness`: access to the column's functions and modules by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from transparity.config import TransformerConfig
from transparity.protocol import Arrays
from transparity.taps import identity, recording
from transparity_pytorch.fast import fast_linear
from transparity_pytorch.layers import LAYERS
from transparity_pytorch.layers.sequential import Layer
from transparity_pytorch.mixers.attention import attention
from transparity_pytorch.port import build, loaded, tensor
from transparity_pytorch.state.context import Context, Mask
from transparity_pytorch.state.parameters import dump, to_numpy

SHARDED = "transparity_pytorch.parallel.port"


class PytorchModule:
    """A `transparity.protocol.Module` that calls an `nn.Module` of this package with NumPy arrays."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: str) -> None:
        self.module, self.dtype, self.device = module, dtype, device

    @torch.no_grad()
    def __call__(
        self, *arrays: Any, context: Mapping[str, Any] | None = None, taps: dict[str, Any] | None = None, **named: Any
    ) -> Any:
        recorded: dict[str, torch.Tensor] = {}
        named = named | ({} if taps is None else {"tap": recording(recorded)})
        given = [tensor(array, self.dtype, self.device) for array in arrays]
        keywords = {name: tensor(array, self.dtype, self.device) for name, array in named.items()}
        if context is not None:
            held = {name: tensor(value, self.dtype, self.device) for name, value in context.items()}
            masks = {name: Mask(held[name]) for name in ("mask", "memory_mask") if held.get(name) is not None}
            held |= {"tap": keywords.pop("tap", identity)}
            keywords["context"] = Context(**{"mask": None, "positions": None, "is_token": None} | held | masks)
        result = self.module(*given, **keywords)
        if taps is not None:
            taps |= {name: to_numpy(value) for name, value in recorded.items()}
        return to_numpy(result)

    def use_batch_statistics(self) -> None:
        self.module.train()

    def parameters(self) -> dict[str, np.ndarray]:
        return dump(self.module)


def function(name: str, *, dtype: str | None = None, device: str = "cpu") -> Callable[..., Any]:
    torch_dtype = getattr(torch, build.checked_dtype(dtype, device))
    found = _named(name)

    def on_arrays(*arrays: Any, **named: Any) -> Any:
        given = [tensor(array, torch_dtype, device) for array in arrays]
        keywords = {name: tensor(array, torch_dtype, device) for name, array in named.items()}
        result = found(*given, **keywords)
        return tuple(map(_array, result)) if isinstance(result, tuple) else _array(result)

    return on_arrays


def module(
    name: str, config: TransformerConfig, parameters: Arrays, *, dtype: str | None = None, device: str = "cpu"
) -> PytorchModule:
    dtype = build.checked_dtype(dtype, device)
    return PytorchModule(loaded(_named(name), config, parameters, dtype, device), getattr(torch, dtype), device)


def einsum(subscripts: str, *arrays: np.ndarray) -> np.ndarray:
    return to_numpy(torch.einsum(subscripts, *map(torch.as_tensor, arrays)))


def describe(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()
    matmul = f"float32 {torch.get_float32_matmul_precision()}"
    return {"torch": torch.__version__, "device": name, "matmul": matmul}


@contextmanager
def pinned() -> Iterator[None]:
    has_cuda, products, least = torch.cuda.is_available(), torch.get_float32_matmul_precision(), fast_linear.LEAST
    torch.set_float32_matmul_precision("highest")
    fast_linear.LEAST = 0  # also pack the weights of small models, so that claims test packed weights
    try:
        with torch.backends.cudnn.flags(allow_tf32=False) if has_cuda else nullcontext():
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        fast_linear.LEAST = least


def processes(ranks: int) -> int:
    return ranks


def _layer(config: TransformerConfig) -> Layer:
    return LAYERS[config.branches](config)


def _decoder_layer(config: TransformerConfig) -> Layer:
    return LAYERS[config.branches](config, has_memory=config.has_encoder)


def _attention(query: Any, key: Any, value: Any, mask: Any, *, config: TransformerConfig, **named: Any) -> torch.Tensor:
    sinks, given = named.pop("sinks", None), {"mask": Mask(mask), "positions": None, "is_token": None} | named
    return attention(config, query, key, value, Context(**given), sinks)


PARTS: dict[str, Callable[..., Any]] = {
    "layers.EncoderLayer": _layer,
    "layers.DecoderLayer": _decoder_layer,
    "mixers.attention.attention": _attention,
}
"""The functions whose names or arguments in this column differ from the protocol, by the protocol's name."""


def _named(name: str) -> Callable[..., Any]:
    if name in PARTS:
        return PARTS[name]
    file, _, attribute = name.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"transparity_pytorch.{file}"), attribute)
    return found


def _array(value: Any) -> Any:
    return to_numpy(value) if isinstance(value, torch.Tensor) else value
