"""Skip the first layers of the reference if the output of the last skipped layer is known."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transparity.config import TransformerConfig
from transparity.taps import in_layer
from transparity_conformance.oracle.oracle import Arrays

Depth = tuple[int, int]
"""(0, i) for layer i of the encoder, (1, i) for layer i of the decoder; after a stack, i is the number of its
layers."""


@functools.lru_cache(maxsize=2**6)
def _shorter(config: TransformerConfig, encoder: int, decoder: int) -> TransformerConfig:
    return dataclasses.replace(
        config,
        num_encoder_layers=config.num_encoder_layers - encoder,
        num_decoder_layers=config.num_decoder_layers - decoder,
    )


def depth(config: TransformerConfig, name: str) -> Depth:
    if found := in_layer(name):
        return int(found[0] == "decoder"), found[1]
    stack, _, rest = name.partition(".")
    if stack == "encoder":
        return 0, config.num_encoder_layers if rest.startswith(("output", "final_norm")) else 0
    if stack == "decoder":
        return 1, config.num_decoder_layers if rest.startswith(("output", "final_norm")) else 0
    return (1, config.num_decoder_layers) if config.has_decoder else (0, config.num_encoder_layers)


@dataclass(frozen=True)
class Start:
    """The number of skipped layers of each stack, and the known activations (`given`)."""

    config: TransformerConfig
    given: Mapping[str, Any]
    encoder: int = 0
    decoder: int = 0
    whole_encoder: bool = False

    @property
    def skipped(self) -> bool:
        return bool(self.encoder or self.decoder or self.whole_encoder)

    @property
    def depth(self) -> Depth:
        is_decoder = self.decoder or self.whole_encoder or not self.config.has_encoder
        return (1, self.decoder) if is_decoder else (0, self.encoder)

    @property
    def shorter(self) -> TransformerConfig:
        return _shorter(self.config, self.encoder, self.decoder) if self.skipped else self.config

    def skips(self, name: str) -> bool:
        if name.startswith("encoder.") and self.whole_encoder:
            # If both stacks share an embedding table, the decoder reads the table under the encoder's name.
            return not (self.config.shared_embedding and name == "encoder.token_embedding.weight")
        if found := in_layer(name):
            return found[1] < (self.encoder if found[0] == "encoder" else self.decoder)
        skipped = self.encoder if name.startswith("encoder.") else self.decoder
        return bool(skipped) and (".embedding" in name or "_convolution" in name)

    def shortened(self, parameters: Arrays) -> Arrays:
        if not self.skipped:
            return parameters
        kept = [name for name in parameters if not (in_layer(name) and self.skips(name))]
        return {self._renamed(name, -1): parameters[name] for name in kept}

    def tap(self, tap: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
        if not self.skipped:
            return tap

        def renamed(name: str, value: Any) -> Any:
            name = self._renamed(name, 1)
            if name == "encoder.output" and self.whole_encoder:
                return self.given[name]
            if self.skips(name):
                stack, skipped = ("encoder", self.encoder) if name.startswith("encoder") else ("decoder", self.decoder)
                behind = f"{stack}.layers.{skipped - 1}.output"
                enters = "embedding_norm" if self.config.embedding_norm else "embedding"
                return self.given.get(behind, value) if name == f"{stack}.{enters}" else value
            return tap(name, value)

        return renamed

    def _renamed(self, name: str, sign: int) -> str:
        if not (found := in_layer(name)):
            return name
        stack, layer, rest = found
        return f"{stack}.layers.{layer + sign * (self.encoder if stack == 'encoder' else self.decoder)}.{rest}"


def start_at(config: TransformerConfig, given: Mapping[str, Any], earliest: Depth) -> Start:
    """Skip as many layers before `earliest` as possible. The output of the last skipped layer must be in `given`."""
    stack, layer = earliest
    if stack == 1 and config.has_encoder and "encoder.output" not in given:
        stack, layer = 0, config.num_encoder_layers
    name = ("encoder", "decoder")[stack]
    # If kinds of layers alternate, the shorter stack must start with the same kind as the whole stack.
    period = len(config.layer_types) or 1
    known = (i for i in range(layer, 0, -1) if i % period == 0 and f"{name}.layers.{i - 1}.output" in given)
    skipped = next(known, 0)
    if stack == 0:
        return Start(config, given, encoder=skipped)
    whole = config.has_encoder
    return Start(config, given, config.num_encoder_layers if whole else 0, skipped, whole)
