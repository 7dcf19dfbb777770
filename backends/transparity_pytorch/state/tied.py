"""Parameters with two names."""

from __future__ import annotations

from typing import Any

from torch import nn

from transparity.config import TransformerConfig


def tie_embeddings(config: TransformerConfig, model: Any) -> None:
    """Let the stacks share their table of token embeddings, and the head use the last stack's, as configured."""
    if config.shared_embedding:
        model.decoder.token_embedding = model.encoder.token_embedding
        tie(model, "decoder.token_embedding.weight", "encoder.token_embedding.weight")
    if config.has_tied_head:
        tie(model, "head.weight", f"{config.stacks[-1]}.token_embedding.weight")


def tie(model: nn.Module, name: str, first: str) -> None:
    """Make `name` the same parameter as `first`.

    A state dict of `model` then has only the name `first`, and loading a state dict keeps the tie.
    """
    scope, _, leaf = name.rpartition(".")

    def share(module: nn.Module, keys: Any = None) -> None:
        setattr(module.get_submodule(scope), leaf, module.get_parameter(first))

    def leave_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        del state[prefix + name]

    def fill_in(module: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
        if prefix + first in state:
            state[prefix + name] = state[prefix + first]

    share(model)
    model.register_state_dict_post_hook(leave_out)
    model.register_load_state_dict_pre_hook(fill_in)
    model.register_load_state_dict_post_hook(share)
