"""The configuration of a transformer: each property in which two models may differ is one field.

The fields come first, in sections, then derived properties, then JSON. The other files of this package have the ranges
of numbers (`fields`), the checks (`validation`), and the small sizes at which ports are compared (`probe_sizes`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from transparity.config.earlier import renamed
from transparity.config.fields import NOT_NEGATIVE, NOT_POSITIVE, POSITIVE, PROBABILITY, SHARE, number, numbers, whole
from transparity.config.layer_kinds import ALIKE, Overrides, differing, kinds_of
from transparity.config.probe_sizes import feed_forward_width, longrope_factors, probe_sizes, shared_expert_width
from transparity.config.validation import check_of, check_together
from transparity.errors import ConfigError, shown
from transparity.limits.files import without_repetition
from transparity.parts.tables import INPUTS, MIXERS, SCALINGS
from transparity.parts.variants import Input
from transparity.text import VALUE, listed, reason, safe

Architecture = Literal["encoder-decoder", "decoder", "encoder"]
Activation = Literal["relu", "gelu", "gelu-tanh", "gelu-quick", "silu"]
NormPosition = Literal["pre", "post", "sandwich", "post-branch"]
Branches = Literal["sequential", "parallel", "parallel-one-norm"]
Projection = Literal["full", "shared-per-head"]
MaskOrder = Literal["before-scale", "after-scale"]
WindowKind = Literal["sliding", "chunked"]
TargetMask = Literal["causal", "causal-and-padding"]
Timescales = Literal["exclusive", "inclusive"]
RopeLayout = Literal["interleaved", "halves"]
Pooling = Literal["first", "mean", "last", "eos", "largest"]
DropoutPlace = Literal[
    "embedding",
    "attention.weights",
    "attention.output",
    "attention_norm",
    "feed_forward.hidden",
    "feed_forward.output",
    "feed_forward_norm",
]
"""The last parts of names; dropout may apply to activations with these names."""

EXACT_MASK_BELOW = -1e6
"""A masked score below this number makes the key's weight underflow to exactly 0 in every precision. With a higher
masked score (document 000 has −1e-20), masked keys keep a weight, and only the unfused attention is correct."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The configuration of a transformer: all properties of a model except the values of its parameters.

    An invalid configuration raises `ConfigError`, which names the field, its value and usually a valid value. Fields of
    a stack that the architecture lacks have no effect, such as `source_vocab_size` in a decoder-only model.
    """

    # Sizes

    architecture: Architecture
    """The stacks of the model: `encoder-decoder`, only a `decoder` (causal), or only an `encoder` (bidirectional)."""
    source_vocab_size: int | None = None
    """Size of the encoder's vocabulary."""
    target_vocab_size: int | None = None
    """Size of the decoder's vocabulary."""
    max_length: int = 100
    """The longest sequence, in tokens."""
    embed_dim: int = 512
    """Features of each token; a multiple of `num_heads` unless `attention_head_dim` is set."""
    num_heads: int = 8
    """Number of query heads in attention."""
    num_key_value_heads: int | None = None
    """Number of key and value heads, each shared by consecutive query heads (Ainslie et al. 2023). With 1, all query
    heads share one key and value head (Shazeer 2019). None means `num_heads`."""
    attention_head_dim: int | None = None
    """Features of each attention head. None means `embed_dim / num_heads`."""
    num_encoder_layers: int = whole(6, least=0, most=10_000)
    """Number of encoder layers."""
    num_decoder_layers: int = whole(6, least=0, most=10_000)
    """Number of decoder layers."""

    # Feed-forward

    feed_forward_dim: int = whole(2048, least=0)
    """Hidden features of the feed-forward. With 0, layers have no feed-forward (Mamba-2)."""
    feed_forward_bias: bool = True
    """Whether the linear maps of the feed-forward have biases."""
    gated: bool = False
    """Whether the feed-forward has a gate, a third projection: activation(gate) · up (Shazeer 2020)."""
    gate_limit: float | None = number(None, POSITIVE, None, 0.7, usual=(7.0, 10.0))
    """Upper bound of the gate before the activation, and ± bound of the up projection (gpt-oss). None: unbounded."""
    up_offset: float = number(0.0, NOT_NEGATIVE, 0.0, 1.0)
    """Number that is added to the up projection before the gate multiplies it (1 in gpt-oss)."""
    activation: Activation = "relu"
    """Activation of the feed-forward. `gelu` is x · Φ(x) (Hendrycks and Gimpel 2016). `gelu-tanh` approximates `gelu`
    by a tanh, `gelu-quick` by x · σ(1.702 x). `silu` is x · σ(x)."""

    # Experts

    num_experts: int = whole(0, 0, 4, least=0)
    """Number of experts: feed-forwards of width `feed_forward_dim`, of which a router chooses some for each token
    (Shazeer et al. 2017). With 0, layers have one feed-forward, and the other fields of experts have no effect."""
    experts_per_token: int = whole(2, 1, 2, 3)
    """Number of experts that each token uses: the experts with the highest scores."""
    router_scores: Literal["softmax", "sigmoid"] = "softmax"
    """Scores of the router's logits: the `softmax` over all experts, or each logit's `sigmoid` (DeepSeek-V3)."""
    router_bias: bool = False
    """Whether the router's linear map has a bias."""
    router_score_bias: bool = False
    """Whether a bias without a gradient changes the choice of experts, but not the weights of the chosen experts (Wang
    et al. 2024)."""
    router_groups: int = whole(1, 1, 2)
    """Number of groups of consecutive experts, ranked by the sum of their two highest scores (DeepSeek-V3)."""
    topk_groups: int = whole(1, 1, 2)
    """Number of highest-ranked groups; a token's experts are chosen only from these groups."""
    normalize_topk: bool = True
    """Whether the scores of the chosen experts are divided by their sum to become weights. With `softmax` scores, these
    weights equal a softmax over the chosen logits. If false, the weights are the scores."""
    router_scale: float = number(1.0, POSITIVE, 1.0, 2.5)
    """Factor that multiplies the weights of the chosen experts (DeepSeek-V3)."""
    shared_expert_dim: int = whole(0, 0, 3, least=0)
    """Hidden features of an additional expert that every token uses (Dai et al. 2024). 0 means no shared expert."""
    shared_expert_gate: bool = False
    """Whether the shared expert's output is multiplied by the sigmoid of a linear map of the token (Qwen 2 MoE)."""

    # Normalization

    norm: Literal["layer", "layer-unbiased", "batch", "rms"] = "layer"
    """`layer`: (x − mean) / √(variance + eps). `layer-unbiased`: (x − mean) / (s + eps), where s is the standard
    deviation with divisor n − 1. `batch`: batch norm over the batch and the positions, with running statistics. `rms`:
    x / √(mean of x² + eps), without a bias (Zhang and Sennrich 2019)."""
    norm_gain: Literal["weight", "one-plus-weight"] = "weight"
    """Factor of the normalized values: the norm's `weight`, or 1 + its weight (Gemma)."""
    norm_bias: bool = True
    """Whether the norms have biases. An RMS norm never has a bias."""
    norm_eps: float = number(
        1e-5, NOT_NEGATIVE, 1e-5, 1e-2, 1e-12, usual=(1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0, 1e-2, 1e-4)
    )
    """Small number that is added to the variance under the root, or to the standard deviation (`layer-unbiased`)."""
    norm_momentum: float = number(0.1, SHARE)
    """Weight of the new batch in the running statistics of `batch`, as in PyTorch; Flax uses 1 − `norm_momentum`."""
    norm_position: NormPosition = "post"
    """Position of the norms around a sublayer f. `post`: norm(x + f(x)). `pre`: x + f(norm(x)). `sandwich`: x +
    norm(f(norm(x))) (Gemma 2). `post-branch`: x + norm(f(x)) (OLMo 2)."""
    branches: Branches = "sequential"
    """`sequential`: attention, then the feed-forward, each with its own residual. `parallel`: x + attention(norm(x)) +
    feed_forward(norm(x)), with two different norms (GPT-NeoX). `parallel-one-norm`: like `parallel`, but attention and
    the feed-forward share one norm (GPT-J)."""
    attention_norm: bool = True
    """Whether a norm precedes self-attention if `norm_position` is `pre`. The first layer of ModernBERT has no norm
    before self-attention, because the embeddings are already normalized."""
    residual_multiplier: float = number(1.0, POSITIVE, 1.0, 0.4)
    """Factor m of each sublayer's output in the residual x + m · f(x) (Granite)."""
    final_norm: bool = False
    """Whether each stack ends with one more norm."""
    memory_norm: bool = False
    """Whether each decoder layer normalizes the encoder's output before cross-attention."""

    # Attention

    projection: Projection = "full"
    """`full`: one linear map from `embed_dim` to all heads, whose result is split into heads. `shared-per-head`: the
    features are split into heads, and one linear map of size head_dim × head_dim is applied to every head."""
    qkv_bias: bool = True
    """Whether the projections of queries, keys and values have biases."""
    key_bias: bool = True
    """Whether the key projection has a bias if `qkv_bias` is true. Whisper has no key bias, which would shift all
    scores of a query equally, and so change no attention weight."""
    output_bias: bool = True
    """Whether the attention's output projection has a bias."""
    q_lora_rank: int | None = None
    """Features of the latent vector from which queries are projected, after an RMS norm; needs `kv_lora_rank`. None
    means that queries are projected from the layer's input."""
    kv_lora_rank: int | None = None
    """Features of the latent vector from which keys and values are projected, after an RMS norm (latent attention,
    DeepSeek-V2). The last `rotary_dim` features of each key are instead projected from the layer's input. All heads
    share these features, and no other features of a key are rotated. None means that keys and values are projected from
    the layer's input.
    """
    value_head_dim: int | None = None
    """Features of each value head. None means the number of features of a key head. Requires `kv_lora_rank`."""
    query_key_norm: bool = False
    """Whether an RMS norm normalizes queries and keys (Qwen 3)."""
    query_key_norm_over: Literal["head", "projection"] = "head"
    """Features that the norm of queries and keys averages over: a `head`, or the whole `projection` (OLMo 2)."""
    attention_scale: Literal["head_dim", "embed_dim", "none"] = "head_dim"
    """Size whose square root divides the scores; `none` means that the scores are not divided."""
    attention_multiplier: float = number(1.0, POSITIVE, 1.0, 0.5)
    """Additional factor of the scores."""
    attention_softcap: float | None = number(None, POSITIVE, None, 1.5, usual=(50.0, 30.0, 20.0, 10.0))
    """Cap of the scores, which become cap · tanh(scores / cap) before the mask (Gemma 2). None means no cap."""
    attention_sinks: bool = False
    """Whether each head's softmax has a sink: a learned logit, whose weight is then dropped (gpt-oss)."""
    sliding_window: int | None = whole(None, None, 1, 2, 3)
    """A query attends only to keys whose distance is below this number (Beltagy et al. 2020). None means no window."""
    window_kind: WindowKind = "sliding"
    """`sliding`: each position has its own window. `chunked`: a position attends only to its own chunk of
    `sliding_window` positions (Llama 4)."""
    query_temperature: float = number(0.0, NOT_NEGATIVE, 0.0, 0.7)
    """Growth t of the query temperature with position (Llama 4, Ministral 3). Queries of self-attention are multiplied
    by 1 + t · ln(1 + ⌊(position + first) / length⌋). The next two fields are `length` and `first`. 0 means no
    factor."""
    query_temperature_length: int = whole(8192, 8192, 2, 3)
    """Number of consecutive positions with the same query temperature."""
    query_temperature_first: int = whole(0, 0, 1, least=0)
    """Number of the first position in the formula of the query temperature: 0 (Ministral 3) or 1 (Llama 4)."""
    mask_value: float = number(-math.inf, NOT_POSITIVE, -math.inf, -1e20, -1e9, -100.0, -3.0, -1e-20, 0.0)
    """Number that replaces masked scores. −inf stands for a very low finite number: if all keys of a query are masked,
    their weights are equal instead of NaN."""
    mask_order: MaskOrder = "after-scale"
    """Whether masked scores are replaced before or after the scores are scaled."""
    target_mask: TargetMask = "causal"
    """Positions that the decoder's self-attention masks: later positions, or later positions and padding."""
    padding: Literal["token", "attention-mask"] = "token"
    """How padding is marked in the tokens of a single stack, or in the source: by the `token` with the id `pad_id`, or
    by an `attention-mask`. A decoder masks `pad_id` only if `target_mask` is `causal-and-padding`; an attention mask
    always applies."""

    attention_gate: bool = False
    """Whether σ(linear map of the input) multiplies the heads' results before their projection (Qwen3-Next)."""

    # Recurrence

    mixer: str = dataclasses.field(default="attention", metadata={"choices": MIXERS})
    """How a layer mixes positions. `attention`: self-attention. `gated-delta`: a recurrence that decays and corrects
    its state (Yang et al. 2025, Qwen3-Next). `state-space`: a recurrence that decays its state and adds to it (Dao and
    Gu 2024, Mamba-2). Recurrences require a decoder-only model."""
    recurrent_heads: int = whole(32, 4, 2)
    """Number of heads of a recurrence. Each head has a state of `recurrent_key_dim` × `recurrent_value_dim` numbers.
    Without a recurrence, the fields of this section have no effect."""
    recurrent_key_heads: int = whole(16, 2, 1)
    """Number of query and key heads of a recurrence. Consecutive value heads share one query head and one key head."""
    recurrent_key_dim: int = whole(128, 5, 3)
    """Features of each query or key head of a recurrence."""
    recurrent_value_dim: int = whole(128, 3, 6)
    """Features of each value head of a recurrence."""
    convolution_width: int = whole(4, 4, 2, 1)
    """Width of the causal convolution of queries, keys and values in a recurrence."""
    convolution_bias: bool = False
    """Whether the convolutions of a recurrence have biases (Mamba-2)."""
    recurrent_bias: bool = False
    """Whether the linear maps of a recurrence have biases."""
    time_step_min: float = number(0.0, NOT_NEGATIVE, 0.0, 0.3)
    """Lower bound of the time step of a recurrence (`time_step_limit` of Mamba-2)."""
    time_step_max: float | None = number(None, POSITIVE, None, 0.8)
    """Upper bound of the time step. None means no bound."""

    # Layers that differ

    layer_types: tuple[str, ...] = ()
    """The kind of each layer, in order; the list repeats until the last layer. If empty, all layers are alike."""
    layer_overrides: Mapping[str, Mapping[str, Any]] = Overrides({})
    """For each kind of layer, the fields whose values differ from this configuration. These fields may differ:
    `sliding_window`, `window_kind`, `query_temperature`, `positions` (`none` instead of `rotary`), `rope_theta`, the
    fields of rotary scaling, `num_experts`, `feed_forward_dim`, `attention_norm` and `mixer`."""

    # Positions

    positions: Literal["learned", "sinusoidal", "rotary", "relative", "alibi", "none"] = "learned"
    """`learned` and `sinusoidal` positions are added to the embeddings. `rotary` rotates queries and keys (Su et al.
    2021). `relative` adds to the scores a learned bias for each head and each bucket of distances (Raffel et al. 2020).
    `alibi` subtracts slope · distance from the scores, with one slope per head (Press et al. 2022)."""
    encoder_positions: Literal["as-decoder", "learned", "sinusoidal"] = "as-decoder"
    """Positions of the encoder, if they differ from `positions`. Whisper has `sinusoidal` only in the encoder."""
    sinusoidal_timescales: Timescales = "exclusive"
    """Timescales of sinusoidal positions, for pair i of the features. `exclusive`: theta^(2 i / features), all below
    theta. `inclusive`: theta^(i / (features / 2 − 1)), the last one theta itself (tensor2tensor, Whisper)."""
    position_offset: int = whole(0, least=0)
    """Row of the first token in the table of learned positions; the table has this number of additional rows."""
    position_count: Literal["all", "visible"] = "all"
    """Tokens that count as positions: `all` tokens, or only `visible` tokens, which are not padding (RoBERTa, OPT).
    With `visible`, padding gets the row before the first token's row; if `position_offset` is 0, padding gets no
    row."""
    rope_layout: RopeLayout = "interleaved"
    """Pairs of features with the same sinusoidal or rotary angle. `interleaved`: neighbors. `halves`: features half the
    width apart."""
    rope_theta: float = number(
        10_000.0, POSITIVE, 10_000.0, 5.0, usual=(10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 1000.0)
    )
    """The base theta of the angles: pair i has the angle position / theta^(2 i / features)."""
    rotary_dim: int | None = whole(None, None, 2)
    """Number of features of each head that are rotated: the first features or, with `kv_lora_rank`, the last features.
    None means all."""
    rotary_scaling: str = dataclasses.field(default="none", metadata={"choices": SCALINGS})
    """Scaling of the rotary angles for long sequences. `linear` divides positions by `rotary_factor`. `llama3` divides
    only slow angles, with a smooth transition to the fast angles (Llama 3.1). In `yarn`, the transition is linear in
    the pairs of features (Peng et al. 2024). `longrope` divides each angle by its own factor. Sequences longer than
    `rotary_original_length` use a second list of factors instead (Ding et al. 2024)."""
    rotary_factor: float = number(1.0, POSITIVE, 1.0, 3.0)
    """Divisor of positions (`linear`) or of slow angles (`llama3`, `yarn`) in rotary scaling."""
    rotary_slow_turns: float = number(1.0, POSITIVE)
    """Angles that make fewer turns than this number in `rotary_original_length` positions are slow."""
    rotary_fast_turns: float = number(4.0, POSITIVE)
    """Angles that make more turns than this number in `rotary_original_length` positions are fast."""
    rotary_original_length: int = whole(8192, 8, 64, 3)
    """The longest sequence of the model before its positions were scaled."""
    rotary_truncate: bool = True
    """Whether the transition of `yarn` is rounded to start and end at whole pairs; gpt-oss does not round."""
    rotary_attention_factor: float = number(1.0, POSITIVE, 1.0, 1.3)
    """Factor of rotated features (YaRN, LongRoPE); `attention_factor` in Hugging Face."""
    rotary_short_factors: tuple[float, ...] = numbers(POSITIVE)
    """With `longrope`, the divisor of each angle in sequences of up to `rotary_original_length` tokens."""
    rotary_long_factors: tuple[float, ...] = numbers(POSITIVE)
    """With `longrope`, the divisor of each angle in sequences of more than `rotary_original_length` tokens."""
    relative_bias: bool = False
    """Whether the scores also get the bias of `relative`, in addition to learned or sinusoidal positions (MPNet)."""
    relative_buckets: int = 32
    """Number of buckets of distances; half for each direction, if queries see earlier and later keys."""
    relative_max_distance: int = 128
    """Distances of at least this number share the last bucket."""

    # Embedding and head

    patch_size: int | None = None
    """Side in pixels of an image's square patches, each embedded by a linear map (Dosovitskiy et al. 2021). None means
    that the input is not an image."""
    image_channels: int = 3
    """Channels of an image. The pixels of a patch are ordered by channel, then row, then column."""
    patch_bias: bool = True
    """Whether the linear map of patches has a bias (CLIP: false)."""
    class_token: bool = False
    """Whether a learned vector precedes the patches; `max_length` counts the patches and this vector."""
    mel_bins: int | None = None
    """Mel bins of a log-mel spectrogram, the encoder's `source` of shape (batch, mel_bins, num_frames). Two
    convolutions of width 3, each followed by GELU, embed the spectrogram; the second has stride 2 (Radford et al.
    2022). None means that the input is not audio."""
    num_frames: int = whole(3000, least=2)
    """Frames of every spectrogram, an even number. The encoder has `num_frames` / 2 positions, whatever `max_length`
    is."""
    num_token_types: int = whole(0, least=0)
    """Number of token types (BERT's sentences A and B), whose embeddings are added to the token embeddings."""
    embedding_scale: Literal["none", "embed_dim"] = "none"
    """`embed_dim` means that token embeddings are multiplied by √embed_dim before the positions are added."""
    embedding_multiplier: float = number(1.0, POSITIVE, 1.0, 3.0)
    """Additional factor of the token embeddings (Granite)."""
    embedding_norm: bool = False
    """Whether the sum of the embeddings is normalized (BERT, BART)."""
    shared_embedding: bool = False
    """Whether the decoder uses the encoder's table of token embeddings."""
    head: Literal["logits", "hidden", "pooled", "classes"] = "logits"
    """Output of the model. `logits`: logits over the vocabulary. `hidden`: the output of the encoder. `pooled`: one
    state per row. `classes`: logits over classes, a linear map of the pooled state."""
    pooling: Pooling = "first"
    """How a row is pooled to one state. `first`: the state at the first position (BERT). `mean`: the mean of all states
    that are not padding (Reimers and Gurevych 2019). `last`: the state of the last token that is not padding (the
    classifier of GPT-2). `eos`: the state of the first `eos_id`, or of the first position if there is no `eos_id`
    (CLIP). `largest`: the state of the first token with the largest id (the code of CLIP until 2023)."""
    pooler: Literal["tanh", "relu", "gelu", "none"] = "tanh"
    """Activation after a linear map of the pooled state (BERT `tanh`, DistilBERT `relu`). `none` omits the linear
    map."""
    num_classes: int = whole(2, 2, 3, 1)
    """Number of classes if `head` is `classes`."""
    tied_head: bool = False
    """Whether the weight of the head is the table of token embeddings (Press and Wolf 2017)."""
    head_transform: bool = False
    """Whether a linear map, the activation and a norm precede the head (the masked-word head of BERT)."""
    head_transform_bias: bool = True
    """Whether the linear map before the head has a bias."""
    head_bias: bool = True
    """Whether the head has a bias."""
    head_scale: Literal["none", "embed_dim"] = "none"
    """`embed_dim` means that the input of the head is divided by √embed_dim (T5)."""
    head_multiplier: float = number(1.0, POSITIVE, 1.0, 0.5)
    """Additional factor of the head's input (Granite and Cohere)."""
    final_softcap: float | None = number(None, POSITIVE, None, 2.0, usual=(50.0, 30.0, 20.0, 10.0))
    """Cap of the logits, which become cap · tanh(logits / cap) (Gemma 2). None means no cap."""

    # Dropout

    dropout: float = number(0.0, PROBABILITY)
    """Probability with which each value is dropped in training; evaluation drops nothing."""
    dropout_at: tuple[DropoutPlace, ...] = ("embedding", "attention.output", "feed_forward.output")
    """Activations that dropout applies to; the default is from Vaswani et al. 2017, §5.4."""

    # Tokens

    pad_id: int | None = whole(0, 0, 1, None, least=0)
    """The token that pads short sequences. None means no padding."""
    bos_id: int | None = whole(None, least=0)
    """The token from which generation starts."""
    eos_id: int | None = whole(None, least=0)
    """The token after which generation ends."""

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name)))
        check_together(self)
        overrides = differing(self, self.layer_kinds)
        object.__setattr__(self, "layer_overrides", overrides)
        if not overrides:
            object.__setattr__(self, "layer_types", ())
        del self.__dict__["layer_kinds"]  # computed before the overrides were reduced

    @property
    def has_encoder(self) -> bool:
        return self.architecture != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder"

    @property
    def mask_is_exact(self) -> bool:
        """Return whether masked keys weigh exactly 0 for every query that sees a key."""
        return self.masked_score < EXACT_MASK_BELOW

    @property
    def angle_limits(self) -> tuple[int, ...]:
        """Return each `rotary_original_length` below `max_length`; rotary angles are different in longer sequences."""
        kinds = [own for own in self.layer_kinds.values() if own.positions == "rotary" and own.rotary_depends_on_length]
        return tuple(own.rotary_original_length for own in kinds if own.rotary_original_length < self.max_length)

    @property
    def prefixes_agree(self) -> bool:
        """Return whether a decoder's outputs do not depend on later tokens, so that keys and values can be cached."""
        return self.mask_is_exact and not self.angle_limits and not self.is_pooled

    @property
    def score_scale(self) -> float:
        """The factor of the scores: `attention_multiplier` times head_dim^−½ (Vaswani et al. 2017, eq. 1), embed_dim^−½
        (documents 001, 002, 004) or 1 (T5)."""
        features = {"head_dim": self.head_dim, "embed_dim": self.embed_dim, "none": 1}[self.attention_scale]
        return float(features**-0.5) * self.attention_multiplier

    @property
    def token_scale(self) -> float:
        """The factor of token embeddings: `embedding_multiplier` times √embed_dim (Vaswani et al. 2017, §3.4) or 1."""
        return float({"none": 1.0, "embed_dim": self.embed_dim**0.5}[self.embedding_scale] * self.embedding_multiplier)

    @property
    def head_input_scale(self) -> float:
        """The factor of the head's input: `head_multiplier` times embed_dim^−½ (T5) or 1."""
        return float({"none": 1.0, "embed_dim": self.embed_dim**-0.5}[self.head_scale] * self.head_multiplier)

    @property
    def masked_score(self) -> float:
        """The number that replaces masked scores: `mask_value`, which is scaled if scores are masked before scaling."""
        return self.mask_value * self.score_scale if self.mask_order == "before-scale" else self.mask_value

    @property
    def is_pooled(self) -> bool:
        """Return whether the output is one vector per row, computed from a pooled state."""
        return self.head in ("pooled", "classes")

    @property
    def has_pooler(self) -> bool:
        """Return whether the pooled state goes through a linear map and an activation."""
        return self.is_pooled and self.pooler != "none"

    @property
    def head_size(self) -> int:
        """The number of features of the output: the size of the vocabulary, the number of classes, or `embed_dim`."""
        if self.head == "logits":
            return self.vocab_size
        return self.num_classes if self.head == "classes" else self.embed_dim

    @property
    def has_tied_head(self) -> bool:
        """Return whether the token embeddings are the head's weight; `tied_head` has no effect without logits."""
        return self.head == "logits" and self.tied_head

    @property
    def filling_id(self) -> int:
        """The token that fills the rest of shorter rows: `pad_id`, else `eos_id`, else 0."""
        return next((token for token in (self.pad_id, self.eos_id) if token is not None), 0)

    @property
    def ending_id(self) -> int:
        """The token that ends a sequence: `eos_id`, or −1, which equals no token."""
        return -1 if self.eos_id is None else self.eos_id

    @property
    def head_dim(self) -> int:
        return self.attention_head_dim or self.embed_dim // self.num_heads

    @property
    def has_norm_bias(self) -> bool:
        return self.norm_bias and self.norm != "rms"

    @property
    def key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    @property
    def attention_dim(self) -> int:
        """Total features of all heads."""
        return self.num_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        return self.value_head_dim or self.head_dim

    @property
    def context_dim(self) -> int:
        """Total features of the values of all heads."""
        return self.num_heads * self.value_dim

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer of this configuration has a recurrence as its mixer."""
        return any(not MIXERS[own.mixer].attends for own in (self, *self.layer_kinds.values()))

    @property
    def attends_never(self) -> bool:
        """Whether no layer has self-attention, because the mixer of every layer is a recurrence."""
        return not any(MIXERS[own.mixer].attends for own in self.layer_kinds.values())

    @property
    def mixer_scope(self) -> str:
        """The name of the mixer in a layer's parameters, activations and cache."""
        return MIXERS[self.mixer].scope

    @property
    def mixer_name(self) -> str:
        """The value of `mixer`, or `latent` for attention with a `kv_lora_rank`."""
        return "latent" if self.kv_lora_rank and self.mixer == "attention" else self.mixer

    @property
    def rotary_depends_on_length(self) -> bool:
        """Whether rotary angles are different in sequences longer than `rotary_original_length`."""
        return SCALINGS[self.rotary_scaling].depends_on_length

    @property
    def recurrent_dim(self) -> int:
        """Total features of the values of all heads of a recurrence."""
        return self.recurrent_heads * self.recurrent_value_dim

    @property
    def convolution_dims(self) -> dict[str, int]:
        """The number of features of a recurrence's queries, keys and values, summed over all heads."""
        keys = self.recurrent_key_heads * self.recurrent_key_dim
        return {"query": keys, "key": keys, "value": self.recurrent_dim}

    @property
    def projected_key_dim(self) -> int:
        """Features of each head's key, without the rotated features that all heads share in latent attention."""
        return self.head_dim - (self.rotated_dim if self.kv_lora_rank else 0)

    @property
    def rotated_dim(self) -> int:
        """The number of features of a head that are rotated."""
        return self.rotary_dim or self.head_dim

    @property
    def has_relative_bias(self) -> bool:
        """Return whether the scores have a learned bias for each bucket of distances."""
        return self.positions == "relative" or self.relative_bias

    @property
    def has_score_bias(self) -> bool:
        """Return whether the scores have a bias, learned or not, that depends on the distance."""
        return self.has_relative_bias or self.positions == "alibi"

    @property
    def attends_by_position(self) -> bool:
        """Whether positions change attention in any layer: by a window, a bias, a rotation or a query temperature."""
        kinds = self.layer_kinds.values()
        rotated = any(own.positions == "rotary" for own in kinds)
        return self.has_score_bias or rotated or any(own.sliding_window or own.query_temperature for own in kinds)

    @property
    def num_positions(self) -> int:
        """The number of rows in the table of learned positions."""
        return self.max_length + self.position_offset

    @functools.cached_property
    def layer_kinds(self) -> dict[str, TransformerConfig]:
        """The configuration of each kind of layer; without `layer_types`, the only kind is `all`."""
        return kinds_of(self, self.layer_types, self.layer_overrides)

    def layer_kind(self, stack: str, layer: int) -> str:
        """Return the kind of a layer (0 is the first), which is a key of `layer_kinds`."""
        return self.layer_types[layer % len(self.layer_types)] if self.layer_types else ALIKE

    def for_layer(self, stack: str, layer: int) -> TransformerConfig:
        """Return the configuration of a layer (0 is the first), with the overrides of its kind applied."""
        return self.layer_kinds[self.layer_kind(stack, layer)]

    def for_stack(self, stack: str) -> TransformerConfig:
        """Return the configuration for the embedding of a stack, with the stack's `positions` and `max_length`."""
        return self.encoder_view if stack == "encoder" else self

    @functools.cached_property
    def encoder_view(self) -> TransformerConfig:
        """The configuration for the encoder's embedding, whose positions may differ from the decoder's positions."""
        positions = self.positions if self.encoder_positions == "as-decoder" else self.encoder_positions
        length = self.positions_of(self.input_names[0]) or self.max_length
        is_itself = (length, positions) == (self.max_length, self.positions)
        return self if is_itself else dataclasses.replace(self, max_length=length, positions=positions)

    @property
    def vocab_size(self) -> int:
        """The size of the logits' vocabulary: the decoder's, or the encoder's if there is no decoder."""
        return self.stack_vocab_size("decoder" if self.has_decoder else "encoder")

    @property
    def stacks(self) -> tuple[str, ...]:
        return ("encoder",) * self.has_encoder + ("decoder",) * self.has_decoder

    def stack_num_layers(self, stack: str) -> int:
        return self.num_encoder_layers if stack == "encoder" else self.num_decoder_layers

    def stack_vocab_size(self, stack: str) -> int:
        size = self.source_vocab_size if stack == "encoder" else self.target_vocab_size
        assert size is not None  # checked on construction
        return size

    @functools.cached_property
    def input_kinds(self) -> dict[str, str]:
        """For each stack, the kind of its input, which is a key of `INPUTS`."""
        return {
            stack: next(kind for kind in reversed(INPUTS) if INPUTS[kind].is_read(self, stack)) for stack in self.stacks
        }

    def input_of(self, name: str) -> Input:
        """Return the description of the input `name`, such as `source`."""
        return INPUTS[self.input_kinds[self.input_stack(name)]]

    @property
    def reads_pixels(self) -> bool:
        """Whether the input is an image instead of tokens."""
        return self.patch_size is not None

    @property
    def reads_frames(self) -> bool:
        """Whether the encoder's input is a spectrogram instead of tokens."""
        return self.mel_bins is not None

    @property
    def frame_positions(self) -> int:
        return self.num_frames // 2

    @property
    def image_size(self) -> int:
        """The side of the square image in pixels; 0 if the input is no image."""
        return math.isqrt(self.max_length - self.class_token) * (self.patch_size or 0)

    @property
    def patch_dim(self) -> int:
        """The number of values in a patch; 0 if the input is no image."""
        return self.image_channels * (self.patch_size or 0) ** 2

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the model's main inputs: `source` and `target`, or `tokens`, or `pixels`."""
        if self.architecture == "encoder-decoder":
            return ("source", "target")
        return (INPUTS[self.input_kinds[self.stacks[0]]].name,)

    @functools.cached_property
    def token_inputs(self) -> tuple[str, ...]:
        """The inputs that are token ids; images and audio are not."""
        return tuple(name for name in self.input_names if self.input_of(name).axes is None)

    def positions_of(self, name: str) -> int | None:
        """Return the number of positions of the input `name` if it is an image or audio; None for tokens."""
        count = self.input_of(name).positions
        return count and count(self)

    @property
    def decoder_mask(self) -> TargetMask:
        """The mask of the decoder's self-attention; in a decoder-only model, an `attention_mask` also hides padding."""
        masked = self.padding == "attention-mask" and self.architecture == "decoder"
        return "causal-and-padding" if masked else self.target_mask

    @property
    def further_inputs(self) -> tuple[str, ...]:
        """The additional inputs `attention_mask` and `token_types`, shaped like the first main input."""
        masked, typed = self.padding == "attention-mask", self.num_token_types > 0
        return ("attention_mask",) * masked + ("token_types",) * typed

    def input_stack(self, name: str) -> str:
        """Return the stack that reads the input `name`."""
        return self.stacks[self.input_names.index(name)]

    def resized(self, **sizes: Any) -> TransformerConfig:
        """Return a small version of this model for comparisons; `sizes` replace the default small sizes.

        The feed-forward keeps its proportion to `embed_dim` unless `sizes` has `feed_forward_dim`. Sizes of a stack
        that the architecture lacks are ignored.
        """
        unknown = set(sizes) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ConfigError(f"resized() was given {listed(sorted(unknown))}; expected fields of a configuration.")
        sizes = probe_sizes(self) | sizes
        for stack, names in (
            (self.has_encoder, ("source_vocab_size", "num_encoder_layers")),
            (self.has_decoder, ("target_vocab_size", "num_decoder_layers")),
        ):
            if not stack:
                sizes = {name: value for name, value in sizes.items() if name not in names}
        embed_dim = CHECKS["embed_dim"](sizes["embed_dim"])
        sizes.setdefault("feed_forward_dim", feed_forward_width(self, embed_dim))
        if self.shared_expert_dim and self.feed_forward_dim:
            sizes.setdefault("shared_expert_dim", shared_expert_width(self, embed_dim, sizes["feed_forward_dim"]))
        return self.with_sizes(**sizes)

    def with_sizes(self, **sizes: Any) -> TransformerConfig:
        """Return a copy with other `sizes`; LongRoPE's lists keep one factor for each pair of rotated features."""
        return dataclasses.replace(self, **sizes, **longrope_factors(self, sizes))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; −inf, which JSON lacks, is the string `"-inf"`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        lowest = "-inf" if self.mask_value == -math.inf else self.mask_value
        overrides = {kind: dict(changed) for kind, changed in self.layer_overrides.items()}
        listed = {name: list(fields[name]) for name in fields if isinstance(fields[name], tuple)}
        return fields | listed | {"mask_value": lowest, "layer_overrides": overrides}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TransformerConfig:
        """Read fields that `as_dict` of any version wrote; raise `ConfigError` for unknown or missing fields."""
        if not isinstance(fields, dict):
            raise ConfigError(f"The configuration is of type {type(fields).__name__}; expected an object of fields.")
        fields, known = renamed(fields), [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                hub = " (pass a Hugging Face config.json to --checkpoint)" if "model_type" in fields else ""
                close = difflib.get_close_matches(safe(name, VALUE), known, 1)
                nearest = f"the nearest is {close[0]}" if close else "expected a field of TransformerConfig"
                raise ConfigError(f"A configuration has no field {shown(name)}{hub}; {nearest}.")
        if "architecture" not in fields:
            raise ConfigError(f"architecture is missing; it should be one of {', '.join(get_args(Architecture))}.")
        lowest = fields.get("mask_value")
        if isinstance(lowest, str) and lowest == "-inf":
            fields = fields | {"mask_value": -math.inf}
        return cls(**fields)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TransformerConfig:
        """Read the result of `to_json`; raise `ConfigError` if `text` is not JSON."""
        try:
            fields = json.loads(text, object_pairs_hook=without_repetition)
        except (ValueError, RecursionError, TypeError) as error:
            raise ConfigError(f"The configuration is not JSON: {reason(error)}.") from None
        return cls.from_dict(fields)


FIELD_TYPES = get_type_hints(TransformerConfig) | {
    field.name: Literal[tuple(field.metadata["choices"])]
    for field in dataclasses.fields(TransformerConfig)
    if "choices" in field.metadata
}
CHECKS = {field.name: check_of(field, FIELD_TYPES[field.name]) for field in dataclasses.fields(TransformerConfig)}
