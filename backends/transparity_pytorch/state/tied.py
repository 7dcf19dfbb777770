"""Parameters with two names."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from transparity.config import TransformerConfig


def tie_embeddings(config: TransformerConfig, model: Any) -> None:
    """Tie the two stacks' token embeddings, and the head's weight to the last stack's embeddings, if configured."""
    if config.shared_embedding:
        tie(model, "decoder.token_embedding.weight", "encoder.token_embedding.weight")
    if config.has_tied_head:
        tie(model, "head.weight", f"{config.stacks[-1]}.token_embedding.weight")


def tie(model: nn.Module, name: str, first: str) -> None:
    """Make `name` the same parameter as `first`.

    A state dict of `model` then has only the name `first`, and loading a state dict keeps the tie.
    """
    _share(name, first, model)
    model.register_state_dict_post_hook(partial(_leave_out, name))
    model.register_load_state_dict_pre_hook(partial(_fill_in, name, first))
    model.register_load_state_dict_post_hook(partial(_share, name, first))


# The hooks are not closures, because pickle cannot store closures.
def _share(name: str, first: str, module: nn.Module, keys: Any = None) -> None:
    scope, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(scope), leaf, module.get_parameter(first))


def _leave_out(name: str, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    del state[prefix + name]


def _fill_in(name: str, first: str, module: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
    if prefix + first in state:
        state[prefix + name] = state[prefix + first]
