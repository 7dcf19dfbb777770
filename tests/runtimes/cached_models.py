"""Export the independent port as an ONNX graph, with a mask and a cache; ids of bugs plant mistakes."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meta.pool.port import port_with
from transparity_conformance.checkpoints.importing import import_checkpoint


class Decoder(torch.nn.Module):
    def __init__(
        self, folder: Path, *bugs: str, dtype: str = "float32", takes_positions: bool = False, **fields: Any
    ) -> None:
        super().__init__()
        checkpoint, self.takes_positions = import_checkpoint(folder), takes_positions
        self.config = dataclasses.replace(checkpoint.config, padding="attention-mask", **fields)
        self.port: Any = port_with(*bugs, taps=False)(self.config, checkpoint.parameters, dtype)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, *past: Tensor) -> Any:
        if self.takes_positions:
            positions, *past = past  # type: ignore[assignment]
            self.port.continued = lambda where: positions
        if not past:
            return self.port.run(tokens=input_ids, attention_mask=attention_mask).float()
        assert attention_mask is not None
        names = [f"decoder.layers.{i}.self_attention" for i in range(self.config.num_decoder_layers)]
        before = past[0].shape[2]
        cache: dict[str, Any] = {"length": before, "real": attention_mask[:, :before] != 0}
        cache |= dict(zip(names, zip(past[::2], past[1::2], strict=True), strict=True))
        x = self.port.decode(input_ids, mask=attention_mask[:, before:], past=cache)
        return self.port.head(x).float(), *(each for name in names for each in cache[name])


def export(
    folder: Path, path: Path, *bugs: str, masked: bool = True, cached: bool = False, fixed: bool = False, **options: Any
) -> Path:
    """Export a graph with the usual input names; unless `fixed`, batch size and length are dynamic."""
    model = Decoder(folder, *bugs, **options)
    ids, free = torch.randint(0, 30, (2, 5)), {0: "batch", 1: "length"}
    given, names, axes = [ids], ["input_ids"], {"input_ids": free, "logits": free}
    outputs = ["logits"]
    if masked:
        given.append(torch.ones(2, 5 + (3 if cached else 0), dtype=torch.long))
        names.append("attention_mask")
        axes["attention_mask"] = {0: "batch", 1: "total"}
    if model.takes_positions:
        given.append(torch.arange(5)[None].expand(2, 5))
        names.append("position_ids")
        axes["position_ids"] = free
    for i in range(model.config.num_decoder_layers if cached else 0):
        for part in ("key", "value"):
            given.append(torch.zeros(2, model.config.key_value_heads, 3, model.config.head_dim))
            names.append(f"past_key_values.{i}.{part}")
            outputs.append(f"present.{i}.{part}")
            axes |= {names[-1]: {0: "batch", 2: "past"}, outputs[-1]: {0: "batch", 2: "total"}}
    return written(model.eval(), given, path, names, outputs, None if fixed else axes)


def written(model: Any, given: Any, path: Path, inputs: list[str], outputs: list[str], axes: Any) -> Path:
    named = {"input_names": inputs, "output_names": outputs, "dynamic_axes": axes}
    with warnings.catch_warnings(action="ignore"):  # this exporter is deprecated, but quick
        torch.onnx.export(model, tuple(given), str(path), **named, dynamo=False)
    return path
