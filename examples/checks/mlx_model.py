# mypy: ignore-errors
"""Check an MLX model: a small GPT.

`python examples/checks/mlx_model.py` prints the verdict, which determines the exit code. MLX also
runs on Linux without a GPU.
"""

import sys

import mlx.core as mx
from mlx import nn

from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence


# The block uses MLX's fast attention. It is unchanged for the check.
class Block(nn.Module):
    """A layer: attention and a feed-forward, each after a norm."""

    def __init__(self, config):
        super().__init__()
        width, hidden, self.heads = config.embed_dim, config.feed_forward_dim, config.num_heads
        self.self_attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output, self.up, self.down = nn.Linear(width, width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def __call__(self, x):
        """Add both sublayers to `x`, of shape (batch, length, width)."""
        normed, split = self.self_attention_norm(x), (*x.shape[:2], self.heads, -1)
        q, k, v = (part(normed).reshape(split).swapaxes(1, 2) for part in (self.query, self.key, self.value))
        # Document 001 divides by the square root of the model's width, not of a head's width.
        context = mx.fast.scaled_dot_product_attention(q, k, v, scale=x.shape[-1] ** -0.5, mask="causal")
        x = x + self.output(context.swapaxes(1, 2).reshape(x.shape))
        return x + self.down(nn.relu(self.up(self.feed_forward_norm(x))))


# The model adds learned positions to the embeddings of the tokens.
class GPT(nn.Module):
    """A GPT, which maps tokens to logits."""

    def __init__(self, config):
        super().__init__()
        vocabulary, width = config.stack_vocab_size("decoder"), config.embed_dim
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(config.max_length, width)
        self.layers = [Block(config) for _ in range(config.num_decoder_layers)]
        self.final_norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def __call__(self, tokens):
        """Return the logits (batch, length, vocabulary)."""
        x = self.token_embedding(tokens) + self.position_embedding(mx.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(x))


# The checker calls `build`. MLX stores matrices as (out, in), as the reference does, so only names differ.
def build(config, parameters):
    """Return the port: the module with the parameters of the reference, whose matrices are (out, in) as in MLX."""
    names = {name: name for name in parameters}
    for part in ("decoder.", "self_attention.", "feed_forward."):
        names = {name: theirs.replace(part, "") for name, theirs in names.items()}
    model = GPT(config)
    model.load_weights([(names[name], mx.array(value)) for name, value in parameters.items()])
    return lambda tokens: model(mx.array(tokens))


# Run the check on the preset of document 001. The checker draws weights, calls `build`, and compares the logits with a
# float64 reference. The answer is a `Report`; `sentence` is its summary.
if __name__ == "__main__":
    report = check(build, preset="notes-lm")
    print(sentence(report))
    sys.exit(report.exit_code)
