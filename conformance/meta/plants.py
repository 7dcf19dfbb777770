"""Mistakes planted in the columns' own lines: each is one line changed, and names the claims that have to notice.

`file` is a column's file; `line` stands in it exactly once per column that has it; `becomes` is what a tired person
might have written. The claims named must fail for the planted backend; others may, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plant:
    """One line of one column, made wrong."""

    mistake: str
    column: str
    file: str
    line: str
    becomes: str
    caught_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}-{self.mistake}"


def in_both(
    mistake: str, file: str, pytorch: tuple[str, str], flax: tuple[str, str] | None, *caught_by: str
) -> list[Plant]:
    """The same mistake in the words of both columns; None where they are the same words."""
    lines = {"transparity_pytorch": pytorch, "transparity_flax": flax or pytorch}
    return [Plant(mistake, column, file, *line, caught_by) for column, line in lines.items()]


PLANTS = [
    *in_both(
        "future-shown",
        "masks",
        (".tril()[None, None]", ".tril(1)[None, None]"),
        ("jnp.tril(jnp.ones((length, length), bool))", "jnp.tril(jnp.ones((length, length), bool), 1)"),
        "masks.causal",
        "masks.target",
        "documents.masks",
        "attention.what_is_hidden_weighs_nothing",
        "metamorphic.future_tokens_do_not_matter",
        "forward.weights",
        "forward.fast_logits",
    ),
    *in_both(
        "mask-polarity",
        "masks",
        ("visible = tokens != pad_id", "visible = tokens == pad_id"),
        None,
        "masks.padding",
        "documents.masks",
        "metamorphic.the_content_of_padding_does_not_matter",
        "metamorphic.the_amount_of_padding_does_not_matter",
    ),
    *in_both(
        "target-padding-forgotten",
        "masks",
        ('if kind == "causal-and-padding" else causal', 'if kind == "both" else causal'),
        None,
        "masks.target",
        "drawn.configurations",
    ),
    *in_both(
        "no-padding-token",
        "masks",
        ("if pad_id is not None else torch.ones_like(tokens, dtype=torch.bool)", "if pad_id else tokens != 0"),
        ("if pad_id is not None else jnp.ones_like(tokens, dtype=bool)", "if pad_id else tokens != 0"),
        "masks.padding",
        "metamorphic.without_a_padding_token_nothing_is_padding",
    ),
    *in_both(
        "position-layout",
        "embeddings",
        ("torch.stack([angles.sin(), angles.cos()], dim=-1)", "torch.cat([angles.sin(), angles.cos()], dim=-1)"),
        (
            "np.stack([np.sin(angles), np.cos(angles)], axis=-1)",
            "np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)",
        ),
        "embeddings.sinusoidal",
        "forward.embedding",
    ),
    *in_both(
        "embedding-scale",
        "embeddings",
        ("x = x * math.sqrt(config.embed_dim)", "x = x / math.sqrt(config.embed_dim)"),
        None,
        "forward.embedding",
        "forward.logits",
        "drawn.configurations",
    ),
    *in_both(
        "norm-eps",
        "normalization",
        ("F.layer_norm(x, weight.shape, weight, bias, eps)", "F.layer_norm(x, weight.shape, weight, bias, eps / 2)"),
        ("centered / jnp.sqrt(variance + eps) * weight", "centered / jnp.sqrt(variance + eps / 2) * weight"),
        "normalization.layer",
        "forward.norms",
    ),
    *in_both(
        "norm-variance",
        "normalization",
        (
            "torch.std_mean(x, dim=-1, correction=1, keepdim=True)",
            "torch.std_mean(x, dim=-1, correction=0, keepdim=True)",
        ),
        ("wide.std(axis=-1, ddof=1, keepdims=True)", "wide.std(axis=-1, ddof=0, keepdims=True)"),
        "normalization.layer_unbiased",
        "forward.norms",
    ),
    *in_both(
        "norm-eps-placement",
        "normalization",
        ("(x - mean) / (deviation + eps)", "(x - mean) / (deviation**2 + eps) ** 0.5"),
        ("(wide - mean) / (deviation + eps)", "(wide - mean) / (deviation**2 + eps) ** 0.5"),
        "normalization.layer_unbiased",
    ),
    *in_both(
        "batch-statistics-unbiased",
        "normalization",
        ("dim=tuple(range(x.ndim - 1)), correction=0", "dim=tuple(range(x.ndim - 1)), correction=1"),
        ("wide.var(axis=axes)", "wide.var(axis=axes, ddof=1)"),
        "normalization.batch_statistics",
        "normalization.batch_training",
        "normalization.batch_training_of_a_model",
    ),
    *in_both(
        "running-average-turned",
        "normalization",
        ("torch.lerp(old, new, momentum)", "torch.lerp(new, old, momentum)"),
        ("(1 - momentum) * old + momentum * new", "momentum * old + (1 - momentum) * new"),
        "normalization.batch_training",
        "normalization.batch_training_of_a_model",
    ),
    *in_both(
        "batch-norm-bias",
        "normalization",
        ("torch.sqrt(variance + eps) * weight + bias", "torch.sqrt(variance + eps) * weight"),
        ("jnp.sqrt(widened(variance) + eps) * weight + bias", "jnp.sqrt(widened(variance) + eps) * weight"),
        "normalization.batch_evaluation",
        "drawn.configurations",
    ),
    *in_both(
        "head-order",
        "attention",
        ("x.unflatten(-1, (num_heads, -1)).transpose(1, 2)", "x.unflatten(-1, (-1, num_heads)).movedim(-1, 1)"),
        (
            "x.reshape(batch, length, num_heads, embed_dim // num_heads).swapaxes(1, 2)",
            "x.reshape(batch, length, embed_dim // num_heads, num_heads).transpose(0, 3, 1, 2)",
        ),
        "attention.split_and_merge_heads",
        "documents.split_heads",
        "forward.query_key_value",
    ),
    *in_both(
        "head-merge",
        "attention",
        ("x.transpose(1, 2).flatten(2)", "x.reshape(x.shape[0], x.shape[2], -1)"),
        (
            "return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)",
            "return x.reshape(batch, length, heads * head_dim)",
        ),
        "attention.split_and_merge_heads",
        "forward.context",
    ),
    *in_both(
        "attention-scale",
        "attention",
        ('if config.attention_scale == "head_dim" else', 'if config.attention_scale == "embed_dim" else'),
        None,
        "forward.scores",
        "forward.fast_logits",
        "layers.encoder_alone",
        "layers.decoder_alone",
    ),
    *in_both(
        "mask-order",
        "attention",
        ('if config.mask_order == "before-scale" else', 'if config.mask_order == "after-scale" else'),
        None,
        "attention.masked_before_and_after_the_scale",
        "drawn.configurations",
    ),
    *in_both(
        "softmax-axis",
        "attention",
        (".softmax(dim=-1)", ".softmax(dim=-2)"),
        ("jax.nn.softmax(widened(shown), axis=-1)", "jax.nn.softmax(widened(shown), axis=-2)"),
        "attention.alone",
        "attention.rows_of_weights_sum_to_one",
        "documents.masked_columns",
        "forward.weights",
    ),
    *in_both(
        "wholly-hidden-row",
        "attention",
        ("query = query.masked_fill(~sees, 0)", "query = query"),
        ("mask=mask, scale=scale", "mask=mask | ~mask.any(-1, keepdims=True), scale=scale"),
        "attention.alone",
        "forward.fast_logits",
    ),
    *in_both(
        "fused-scale",
        "attention",
        ("attn_mask=mask | ~sees, scale=scale", "attn_mask=mask | ~sees"),
        ("mask=mask, scale=scale", "mask=mask"),
        "attention.alone",
        "forward.fast_logits",
        "layers.encoder_alone",
        "documents.printed_shapes",
        "loss.of_the_model",
    ),
    *in_both(
        "fused-though-it-shows",
        "attention",
        ("LEAVES_OUT = -1e6", "LEAVES_OUT = 1e6"),
        None,
        "attention.alone",
        "forward.fast_logits",
    ),
    *in_both(
        "projection-shared",
        "attention",
        ('if projection == "shared-per-head":', 'if projection == "shared":'),
        None,
        "forward.query_key_value",
    ),
    *in_both(
        "key-for-value",
        "attention",
        ('tap("value", project_heads(self.value, memory', 'tap("value", project_heads(self.key, memory'),
        None,
        "forward.query_key_value",
        "forward.attention_output",
        "forward.decoder_layers",
        "forward.encoder_layers",
    ),
    *in_both(
        "activation",
        "feed_forward",
        ('{"relu": F.relu}', '{"relu": F.gelu}'),
        ('{"relu": jax.nn.relu}', '{"relu": jax.nn.gelu}'),
        "feed_forward.alone",
        "forward.feed_forward",
    ),
    *in_both(
        "norm-placement",
        "layers",
        ('if position == "pre":', 'if position == "post":'),
        None,
        "layers.encoder_alone",
        "layers.decoder_alone",
        "forward.norms",
        "forward.stacks",
    ),
    *in_both(
        "norm-swapped",
        "layers",
        ('x = residual(x, normalize("cross_attention_norm")', 'x = residual(x, normalize("self_attention_norm")'),
        None,
        "layers.decoder_alone",
    ),
    *in_both(
        "memory-norm-forgotten",
        "layers",
        ('else normalize("memory_norm")(memory)', "else memory"),
        None,
        "layers.decoder_alone",
        "forward.taps_are_complete",
    ),
    *in_both(
        "final-norm-forgotten",
        "transformer",
        (
            'x = self.decoder(tokens, mask, tap=scoped(tap, "decoder"))',
            'self.decoder.final_norm = None; x = self.decoder(tokens, mask, tap=scoped(tap, "decoder"))',
        ),
        None,
        "forward.stacks",
        "forward.logits",
        "generation.sampling",
    ),
    *in_both(
        "memory-unmasked",
        "transformer",
        (
            "x = self.decoder(target, mask, memory, source_mask,",
            "x = self.decoder(target, mask, memory, source_mask | True,",
        ),
        None,
        "forward.weights",
        "metamorphic.a_source_wholly_padded_is_no_accident",
        "metamorphic.the_amount_of_padding_does_not_matter",
    ),
    *in_both(
        "loss-counts-padding",
        "loss",
        ("-100 if pad_id is None else pad_id", "-100"),
        ("targets != pad_id if pad_id is not None else", "targets >= 0 if pad_id is not None else"),
        "loss.cross_entropy",
        "loss.of_the_model",
    ),
    *in_both(
        "smoothing-forgotten",
        "loss",
        ("label_smoothing=label_smoothing", "label_smoothing=0"),
        ("picked = (1 - label_smoothing) * picked +", "picked = picked +"),
        "loss.smoothed",
    ),
    *in_both(
        "gradients-of-the-sum",
        "differentiation",
        ("torch.autograd.grad(loss,", "torch.autograd.grad(loss * len(targets),"),
        ("jax.value_and_grad(loss)(", "jax.value_and_grad(lambda parameters: loss(parameters) * len(targets))("),
        "differentiation.gradients_of_a_model",
    ),
    *in_both(
        "optimizer-eps-forgotten",
        "optimization",
        ("betas=training.betas, eps=training.eps, weight_decay", "betas=training.betas, weight_decay"),
        ("optax.adamw(rate, beta1, beta2, eps,", "optax.adamw(rate, beta1, beta2,"),
        "optimization.ten_steps",
    ),
    *in_both(
        "weight-decay-coupled",
        "optimization",
        ("return torch.optim.AdamW(", "return torch.optim.Adam("),
        (
            "optax.adamw(rate, beta1, beta2, eps, weight_decay=training.weight_decay)",
            "optax.chain(optax.add_decayed_weights(training.weight_decay), optax.adam(rate, beta1, beta2, eps))",
        ),
        "optimization.ten_steps",
    ),
    *in_both(
        "clipping-per-tensor",
        "optimization",
        ("get_total_norm(gradients.values())", "get_total_norm(next(iter(gradients.values())))"),
        (
            "optax.chain(optax.clip_by_global_norm(training.max_norm), optimizer)",
            "optax.chain(optax.clip_by_block_rms(training.max_norm), optimizer)",
        ),
        "optimization.ten_steps",
    ),
    *in_both(
        "warm-up-begins-at-two",
        "optimization",
        ("training.rate(step, model", "training.rate(step + 1, model"),
        ("range(1, steps + 1)", "range(2, steps + 2)"),
        "optimization.ten_steps",
    ),
    *in_both(
        "greedy-is-the-least-likely",
        "generation",
        ("logits.argmax(dim=-1)", "logits.argmin(dim=-1)"),
        ("logits.argmax(axis=-1)", "logits.argmin(axis=-1)"),
        "generation.greedy",
        "generation.sampled_tokens",
        "generation.stops_at_the_end_token",
    ),
    *in_both(
        "sampling-off-by-one",
        "generation",
        ("cumulative <= uniforms", "cumulative < uniforms"),
        None,
        "generation.sampled_tokens",
    ),
    *in_both(
        "generation-crop",
        "decoding",
        ("shown = begin[:, None]", "shown = 0 * begin[:, None]"),
        ("tokens, begin[:, None]", "tokens, 0 * begin[:, None]"),
        "generation.crops_the_context",
        "generation.sampling",
    ),
    *in_both(
        "generation-stop",
        "generation",
        ("(token == config.ending_id)", "(token == config.bos_id)"),
        None,
        "generation.stops_at_the_end_token",
    ),
    *in_both(
        "cache-position",
        "transformer",
        ("self.position_embedding, tokens, positions))", "self.position_embedding, tokens))"),
        None,
        "decoding.chunks",
        "decoding.ragged_rows",
        "generation.greedy",
    ),
    *in_both(
        "cache-mask",
        "masks",
        ("<= positions[:, :, None]", "< positions[:, :, None]"),
        None,
        "decoding.chunks",
        "decoding.ragged_rows",
    ),
    *in_both(
        "cache-filling-counted",
        "decoding",
        ("(tokens.shape[1] if counts is None else counts)", "tokens.shape[1]"),
        None,
        "decoding.ragged_rows",
        "generation.ragged_prompts",
    ),
    *in_both(
        "cache-padding-shown",
        "decoding",
        ("config.pad_id if hides_padding else None", "None"),
        None,
        "decoding.every_split_of_every_preset",
    ),
    *in_both(
        "top-k-off-by-one",
        "generation",
        ("sampling.top_k :]", "sampling.top_k + 1 :]"),
        None,
        "generation.drawable",
        "generation.sampling_by_every_option",
    ),
    *in_both(
        "top-p-of-the-token-itself",
        "generation",
        ("before = probability.cumsum(dim=-1) - probability", "before = probability.cumsum(dim=-1)"),
        ("before = probability.cumsum(axis=-1) - probability", "before = probability.cumsum(axis=-1)"),
        "generation.drawable",
    ),
    *in_both(
        "temperature-multiplies",
        "generation",
        ("logits / sampling.temperature", "logits * sampling.temperature"),
        None,
        "generation.drawable",
    ),
    *in_both(
        "beams-forget-their-cache",
        "beams",
        ("taken(cache, kept)", "taken(cache, kept * 0)"),
        None,
        "generation.beam_search",
    ),
    *in_both(
        "length-penalty",
        "beams",
        (") / 6) ** power", ") / 6) ** -power"),
        None,
        "generation.beam_search",
    ),
    *in_both(
        "dropout-unscaled",
        "dropout",
        ("value / (1 - rate)", "value / 1"),
        None,
        "dropout.gradients_with_shared_masks",
    ),
    *in_both(
        "dropout-keeps-what-it-drops",
        "dropout",
        ("~masks[name]", "masks[name]"),
        ("jnp.where(masks[name]", "jnp.where(~masks[name]"),
        "dropout.gradients_with_shared_masks",
    ),
    *in_both(
        "noise-left-in",
        "feed_forward",
        (
            'tap("output", self.down(hidden))',
            'tap("output", self.down(hidden) * (1 + 1e-3 * __import__("random").random()))',
        ),
        None,
        "metamorphic.two_runs_are_bitwise_equal",
    ),
    *in_both(
        "rows-mixed",
        "transformer",
        (
            'x = tap("embedding", embed(self.config, self.token_embedding, self.position_embedding, tokens))',
            (
                "x = embed(self.config, self.token_embedding, self.position_embedding, tokens); "
                'x = tap("embedding", x + x[:1])'
            ),
        ),
        None,
        "metamorphic.permuting_the_batch_permutes_the_output",
        "metamorphic.a_row_alone_equals_the_row_in_its_batch",
    ),
    *in_both(
        "einsum-turned",
        "port",
        ("to_numpy(torch.einsum(", "to_numpy(-torch.einsum("),
        ("to_numpy(jnp.einsum(", "to_numpy(-jnp.einsum("),
        "documents.einsum",
    ),
    # The reference is planted, too: what nobody here wrote has to notice.
    Plant(
        "attention-scale",
        "transparity",
        "attention",
        "query @ key.swapaxes(-2, -1) * query",
        "2 * query @ key.swapaxes(-2, -1) * query",
        (
            "independent.torch_multihead_attention",
            "independent.flax_multi_head_attention",
            "independent.jax_dot_product_attention",
            "independent.torch_layers",
        ),
    ),
    Plant(
        "mask-polarity",
        "transparity",
        "attention",
        "np.where(mask, scores",
        "np.where(~mask, scores",
        ("independent.torch_multihead_attention", "independent.jax_dot_product_attention"),
    ),
    Plant(
        "norm-eps",
        "transparity",
        "normalization",
        "centered / np.sqrt(variance + x.dtype.type(eps)) * weight",
        "centered / np.sqrt(variance + x.dtype.type(2 * eps)) * weight",
        ("independent.torch_layer_norm", "independent.torch_layers"),
    ),
    Plant(
        "running-average-turned",
        "transparity",
        "normalization",
        "(1 - share) * old + share * new",
        "share * old + (1 - share) * new",
        ("independent.torch_batch_norm",),
    ),
    Plant(
        "norm-placement",
        "transparity",
        "layers",
        'if position == "pre":',
        'if position == "post":',
        ("independent.torch_layers",),
    ),
    Plant(
        "loss-counts-padding",
        "transparity",
        "loss",
        "targets != pad_id if pad_id is not None else",
        "targets >= 0 if pad_id is not None else",
        ("independent.torch_cross_entropy", "loss.cross_entropy"),
    ),
]
