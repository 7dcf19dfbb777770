import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import table

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads.logits import logits
from transparity_numpy.masks import target_mask
from transparity_numpy.state.context import Context
from transparity_numpy.transformer import stack
from transparity_pytorch.port import build as build_pytorch

CONFIGS = {"notes-lm": preset("notes-lm").resized(), **{name: example_config(name) for name in ("llama", "qwen3_moe")}}


class Port:
    """A port with the logits of packed documents and of adapted weights; `wrong` names its faults."""

    def __init__(self, config: TransformerConfig, parameters: dict[str, np.ndarray], wrong: str = "") -> None:
        self.config, self.parameters, self.wrong = config, parameters, wrong
        self.forward = build_pytorch(config, parameters)

    def __call__(self, **tokens: Any) -> Any:
        return self.forward.logits(**tokens)

    def packed(self, tokens: np.ndarray, documents: np.ndarray) -> np.ndarray:
        config, tree, (batch, length) = self.config, nest(self.parameters), tokens.shape
        index, is_token = np.arange(length)[None], np.ones((batch, length), bool)
        begins = np.maximum.accumulate(np.where(np.diff(documents, axis=1, prepend=-1) != 0, index, 0), axis=1)
        visible = target_mask(index, is_token, config.decoder_mask)
        if "visible" not in self.wrong:
            visible = visible & (documents[:, :, None] == documents[:, None, :])[:, None]
        positions = index if "positions" in self.wrong else index - begins
        context = Context(visible, positions, is_token)
        return logits(config, tree, stack("decoder", config, tree["decoder"], tokens, context))

    def adapted(
        self, adapters: dict[str, np.ndarray], alpha: float, *, rank_stabilized: bool = False, **tokens: np.ndarray
    ) -> Any:
        modules = dict(self.forward.model.named_modules())
        inputs = {name: torch.tensor(tokens[name]) for name in tokens}
        rank = min(next(iter(adapters.values())).shape)
        scale = alpha / math.sqrt(rank) if rank_stabilized else alpha / rank
        if "scale" in self.wrong:
            scale = alpha
        hooks = []
        for name in [name.removesuffix(".lora_A") for name in adapters if name.endswith(".lora_A")]:
            down, up = torch.tensor(adapters[f"{name}.lora_A"]), torch.tensor(adapters[f"{name}.lora_B"])
            if "none" not in self.wrong:
                hooks.append(modules[name].register_forward_hook(functools.partial(add_adapter, down, up, scale)))
        with torch.no_grad():
            found = self.forward.model(**inputs)
        for hook in hooks:
            hook.remove()
        return found


def add_adapter(
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
    module: torch.nn.Module,
    given: tuple[torch.Tensor],
    y: torch.Tensor,
) -> torch.Tensor:
    return y + scale * (given[0] @ down.T @ up.T)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_right_port_agrees(name: str) -> None:
    report = check(Port, config=CONFIGS[name])
    agreeing = {claim.id for claim in report.claims if claim.verdict == "agrees"}
    assert (report.verdict, agreeing >= {"packed", "adapted", "adapted.rank_stabilized"}) == ("agrees", True)


FAULTS: dict[str, list[str]] = table(__file__, "other_logits.toml")["faults"]


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_common_fault_is_named(wrong: str) -> None:
    first = check(functools.partial(Port, wrong=wrong), preset="notes-lm").faults[0]
    ((cause,),) = [first.causes]
    assert [first.where, cause.mistake, cause.says] == FAULTS[wrong]
