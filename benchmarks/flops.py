"""The number of floating-point operations (FLOPs) of a forward pass, computed from the configuration.

A product of an (m, k) and a (k, n) matrix takes m · n · k multiplications and as many additions: 2 · m · n · k FLOPs.
In the table, letters such as B and T are the sizes in `transparity.axes`; F is `feed_forward_dim`, A `attention_dim`.

| product                                            | FLOPs                  |
|----------------------------------------------------|------------------------|
| query; key and value, each (`full`)                | 2·B·T·D·A; 2·B·S·D·K·H |
| query; key and value, each (`shared-per-head`)     | 2·B·T·D·H; 2·B·S·D·H   |
| scores; context                                    | 2·B·T·S·A each         |
| output                                             | 2·B·T·D·A              |
| gate of the context, if there is one               | 2·B·T·D·A              |
| recurrence: maps to its Z features and 2N rates    | 2·B·T·D·(Z + 2N)       |
| its convolutions, of width W                       | 2·B·T·Z·W              |
| its N states of H by V: read, corrected, written   | 2·B·T·N·H·V each       |
| within its chunks of C: k·k, q·k; products with v  | 2·B·T·C·N·H; ·V        |
| feed-forward: up, down, and a gate if there is one | 2·B·T·D·F each         |
| experts, each; router                              | as above; 2·B·T·D·E    |
| patches of an image (P pixels and channels)        | 2·B·T·P·D              |
| two convolutions of frames of M mel bins           | 4·B·T·D·3M; 2·B·T·D·3D |
| head: logits, or the pooled first position         | 2·B·T·D·V; 2·B·D·D     |

Only matrix products count: no softmax, masks, scales, norms, biases, residuals, activations or embeddings. Masked
scores count too, so a causal mask saves nothing. Each decoder layer projects the encoder's output to keys and values.
All experts (E) count, because the PyTorch and JAX implementations compute all experts for all tokens. The rows about
recurrences describe the gated delta rule. A state-space model has N rates instead of 2N, computes no k·k, and does not
correct its states."""

from transparity.config import TransformerConfig

CHUNK = 64
"""The positions per chunk of a recurrence in the project's PyTorch implementation."""


def forward_flops(config: TransformerConfig, batch: int, **lengths: int) -> int:
    """Return the FLOPs of one forward pass. `lengths` maps the name of each input to its number of positions."""
    if set(lengths) != set(config.input_names):
        expected, given = ", ".join(config.input_names), ", ".join(lengths) or "none"
        raise ValueError(f"lengths has {given}; expected {expected}.")
    stacks = sum(stack_flops(config, name, **lengths) for name in config.input_names)
    return batch * (stacks + head_flops(config, lengths[config.input_names[-1]]))


def stack_flops(config: TransformerConfig, name: str, **lengths: int) -> int:
    """Return the FLOPs of the layers that read the input `name`, for one row of the batch."""
    length, stack = lengths[name], config.input_stack(name)
    crossing = attention_flops(config, length, lengths["source"]) if name == "target" else 0
    kinds = [config.for_layer(stack, index) for index in range(config.stack_num_layers(stack))]
    return front_flops(config, name, length) + sum(
        mixer_flops(own, length) + crossing + feed_forward_flops(own, length) for own in kinds
    )


def mixer_flops(config: TransformerConfig, length: int) -> int:
    if config.mixer == "attention":
        return attention_flops(config, length, length)
    projected = sum(config.convolution_dims.values()) + config.recurrent_dim + config.recurrent_heads
    projected += config.recurrent_heads if config.mixer == "gated-delta" else 0
    convolved = product_flops(length, config.convolution_width, sum(config.convolution_dims.values()))
    output = product_flops(length, config.recurrent_dim, config.embed_dim)
    return product_flops(length, config.embed_dim, projected) + convolved + state_flops(config, length) + output


def state_flops(config: TransformerConfig, length: int) -> int:
    """Return the FLOPs of a recurrence that updates its state chunk by chunk.

    Within a chunk, queries are multiplied by keys, and these products by values. The state is multiplied by the
    queries, and the products of keys and values are added to the state. The gated delta rule also multiplies keys by
    keys, and the state by the keys."""
    keys, values = config.recurrent_key_dim, config.recurrent_value_dim
    chunks = [min(CHUNK, length - begin) for begin in range(0, length, CHUNK)]
    readers = 2 if config.mixer == "gated-delta" else 1
    inside = sum(readers * product_flops(chunk, keys, chunk) + product_flops(chunk, chunk, values) for chunk in chunks)
    return config.recurrent_heads * (inside + (readers + 1) * product_flops(length, keys, values))


def front_flops(config: TransformerConfig, name: str, length: int) -> int:
    """Return the FLOPs of embedding image patches, or of the convolutions of audio; 0 for tokens."""
    if name in config.token_inputs:
        return 0
    if config.mel_bins is None:
        return product_flops(length - config.class_token, config.patch_dim, config.embed_dim)
    first = product_flops(config.num_frames, 3 * config.mel_bins, config.embed_dim)
    return first + product_flops(config.frame_positions, 3 * config.embed_dim, config.embed_dim)


def attention_flops(config: TransformerConfig, queries: int, keys: int) -> int:
    scores = product_flops(queries, config.attention_dim, keys)
    context = product_flops(queries, config.context_dim, keys)
    output = product_flops(queries, config.context_dim, config.embed_dim)
    gate = product_flops(queries, config.embed_dim, config.context_dim) if config.attention_gate else 0
    return query_flops(config, queries) + key_value_flops(config, keys) + scores + context + gate + output


def query_flops(config: TransformerConfig, length: int) -> int:
    if config.q_lora_rank is None:
        return product_flops(length, config.attention_dim, _projected_features(config))
    latent = product_flops(length, config.embed_dim, config.q_lora_rank)
    return latent + product_flops(length, config.q_lora_rank, config.attention_dim)


def key_value_flops(config: TransformerConfig, length: int) -> int:
    if config.kv_lora_rank is None:
        return 2 * product_flops(length, config.key_value_heads * config.head_dim, _projected_features(config))
    latent = product_flops(length, config.embed_dim, config.kv_lora_rank + config.rotated_dim)
    own = config.num_heads * (config.projected_key_dim + config.value_dim)
    return latent + product_flops(length, config.kv_lora_rank, own)


def feed_forward_flops(config: TransformerConfig, length: int) -> int:
    dense = (2 + config.gated) * product_flops(length, config.embed_dim, config.feed_forward_dim)
    if not config.num_experts:
        return dense
    router = product_flops(length, config.embed_dim, config.num_experts)
    shared = (2 + config.gated) * product_flops(length, config.embed_dim, config.shared_expert_dim)
    is_gated = bool(config.shared_expert_dim) and config.shared_expert_gate
    gate = product_flops(length, config.embed_dim, 1) if is_gated else 0
    return router + config.num_experts * dense + shared + gate


def head_flops(config: TransformerConfig, length: int) -> int:
    rows = 1 if config.is_pooled else length
    square = product_flops(rows, config.embed_dim, config.embed_dim)
    final = product_flops(rows, config.embed_dim, config.head_size) if config.head in ("logits", "classes") else 0
    return square * (config.has_pooler + config.head_transform) + final


def product_flops(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def _projected_features(config: TransformerConfig) -> int:
    return {"full": config.embed_dim, "shared-per-head": config.head_dim}[config.projection]
