"""Check a PyTorch module with its own names for parameters: a small GPT in a common style.

`python examples/checks/torch_module.py` prints the verdict, which determines the exit code.
"""

import sys
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence

# The module names its tensors in its own way. The table translates parts of these names to the names of the reference.
NAMES = {
    "wte.weight": "decoder.token_embedding.weight",
    "wpe.weight": "decoder.position_embedding.weight",
    "ln_f.": "decoder.final_norm.",
    "lm_head.": "head.",
    "blocks.": "decoder.layers.",
    "ln_1.": "self_attention_norm.",
    "ln_2.": "feed_forward_norm.",
    "c_proj.": "self_attention.output.",
    "mlp.0.": "feed_forward.up.",
    "mlp.2.": "feed_forward.down.",
}
"""Parts of the module's tensor names, each with the name in the reference."""


# The module is unchanged for the check. One matrix computes queries, keys and values.
class Block(nn.Module):
    """A layer: attention and a feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add both sublayers to `x`, of shape (batch, length, width)."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        # Document 001 divides by the square root of the model's width, not of a head's width.
        scores = query @ key.mT / x.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        context = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        x = x + self.c_proj(context.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


# The model adds learned positions to the embeddings of the tokens.
class GPT(nn.Module):
    """A GPT, which maps tokens to logits."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        vocabulary, width = config.stack_vocab_size("decoder"), config.embed_dim
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(config.max_length, width)
        block = (width, config.num_heads, config.feed_forward_dim)
        self.blocks = nn.ModuleList(Block(*block) for _ in range(config.num_decoder_layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, length, vocabulary)."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# The checker calls `build` with a configuration and the parameters of the reference. `build` returns a function from
# tokens to logits.
def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Callable[..., Tensor]:
    """Return the port: the module with the parameters of the reference."""
    model = GPT(config).eval()
    model.load_state_dict({name: taken(name, parameters) for name in model.state_dict()})
    return lambda tokens: model(torch.tensor(tokens))


# The reference has three matrices where this module has one, so `taken` concatenates them.
def taken(name: str, parameters: Mapping[str, np.ndarray]) -> Tensor:
    """Return the value of the module's tensor `name`; query, key and value are one tensor in the module."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    if "c_attn" in name:
        parts = (name.replace("c_attn", f"self_attention.{part}") for part in ("query", "key", "value"))
        return torch.from_numpy(np.concatenate([parameters[part] for part in parts]))
    return torch.from_numpy(parameters[name].copy())


# Run the check on the preset of document 001. The checker draws weights, calls `build`, and compares the logits with a
# float64 reference. The answer is a `Report`; `sentence` is its summary.
if __name__ == "__main__":
    report = check(build, preset="notes-lm")
    print(sentence(report))
    sys.exit(report.exit_code)
