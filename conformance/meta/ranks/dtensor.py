"""A Llama as a plain `nn.Module` that PyTorch shards by a plan of `parallelize_module`; its logits are a DTensor.

`build` is correct. `build_fused` is wrong: it concatenates query, key and value, and each rank gets a block of rows.
"""

import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from meta.audits.loaders import llama_module
from meta.ranks.collectives import join_group
from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.exporting import export_checkpoint

RANK, RANKS = join_group()

COLUMNS, ROWS = ("wq", "wk", "wv", "gate", "up"), ("wo", "down")


def sharded(model: torch.nn.Module) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles: dict[str, Any] = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
    styles["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    plan = {name: styles[role] for name, _ in model.named_modules() if (role := name.rpartition(".")[2]) in styles}
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)


def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    """Return the correct port; it is not sharded on a single rank."""
    with tempfile.TemporaryDirectory() as folder:
        export_checkpoint("llama", config, parameters, folder)
        model: Any = llama_module.load(folder)  # type: ignore[no-untyped-call]
    model = model if RANKS == 1 else sharded(model)

    def forward(tokens: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(tokens))

    return forward


def build_fused(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    """Return the wrong port, in which each rank has the rows that it would get from the concatenated matrix."""
    found = dict(parameters)
    for layer in range(config.num_decoder_layers):
        names = [f"decoder.layers.{layer}.self_attention.{role}.weight" for role in ("query", "key", "value")]
        ends = np.cumsum([len(found[name]) // RANKS for name in names])[:-1]
        of_ranks = [np.split(rows, ends) for rows in np.split(np.concatenate([found[name] for name in names]), RANKS)]
        found |= {name: np.concatenate(rows) for name, rows in zip(names, zip(*of_ranks, strict=True), strict=True)}
    return build(config, found)
