"""One frozen description of a transformer: every difference between two systems is one field.

The fields come first, in sections, then derived properties, then JSON. In this package, `fields` has the ranges of
numbers, `validation` the checks, and `probe_sizes` the probe sizes.
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
from transparity.text import VALUE, listed, reason, safe

Architecture = Literal["encoder-decoder", "decoder", "encoder"]
Activation = Literal["relu", "gelu", "gelu-tanh", "gelu-quick", "silu"]
RouterScores = Literal["softmax", "sigmoid"]
NormKind = Literal["layer", "layer-unbiased", "batch", "rms"]
NormGain = Literal["weight", "one-plus-weight"]
NormPosition = Literal["pre", "post", "sandwich", "post-branch"]
Branches = Literal["sequential", "parallel", "parallel-one-norm"]
QueryKeyNormOver = Literal["head", "projection"]
Projection = Literal["full", "shared-per-head"]
AttentionScale = Literal["head_dim", "embed_dim", "none"]
MaskOrder = Literal["before-scale", "after-scale"]
WindowKind = Literal["sliding", "chunked"]
Mixer = Literal["attention", "gated-delta", "state-space"]
TargetMask = Literal["causal", "causal-and-padding"]
Padding = Literal["token", "attention-mask"]
Positions = Literal["learned", "sinusoidal", "rotary", "relative", "alibi", "none"]
EncoderPositions = Literal["as-decoder", "learned", "sinusoidal"]
Timescales = Literal["exclusive", "inclusive"]
PositionCount = Literal["all", "visible"]
RopeLayout = Literal["interleaved", "halves"]
RotaryScaling = Literal["none", "linear", "llama3", "yarn", "longrope"]
EmbeddingScale = Literal["none", "embed_dim"]
Head = Literal["logits", "hidden", "pooled", "classes"]
Pooling = Literal["first", "mean", "last", "eos", "largest"]
Pooler = Literal["tanh", "relu", "gelu", "none"]
HeadScale = Literal["none", "embed_dim"]
DropoutPlace = Literal[
    "embedding",
    "attention.weights",
    "attention.output",
    "attention_norm",
    "feed_forward.hidden",
    "feed_forward.output",
    "feed_forward_norm",
]
"""Suffixes of the taps that dropout may apply to."""

EXACT_MASK_BELOW = -1e6
"""Below this, the weight of a masked key underflows to exactly 0 in every precision, so that leaving the key out is the
same as replacing its score; above it (document 000's −1e-20) it is not, and only the explicit path is correct."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A transformer, described by one orthogonal field for each difference between two systems.

    Raises `ConfigError` for an impossible configuration, with the field, its value and a valid one.
    Fields of a stack that the architecture lacks (a decoder's `source_vocab_size`) are not read.
    """

    # Sizes

    architecture: Architecture
    """`encoder-decoder`, or only one stack: `decoder` (causal) or `encoder` (bidirectional)."""
    source_vocab_size: int | None = None
    """Size of the encoder's vocabulary."""
    target_vocab_size: int | None = None
    """Size of the decoder's vocabulary."""
    max_length: int = 100
    """The longest sequence, in tokens."""
    embed_dim: int = 512
    """Features of a token; a multiple of `num_heads`, unless `attention_head_dim` sets the width of a head."""
    num_heads: int = 8
    """Attention heads of the queries."""
    num_key_value_heads: int | None = None
    """Heads of keys and values. Consecutive query heads share one (Ainslie et al. 2023). None: as many as query heads;
    1: one for all (Shazeer 2019)."""
    attention_head_dim: int | None = None
    """Features of a head; None: embed_dim / num_heads."""
    num_encoder_layers: int = whole(6, least=0, most=10_000)
    """Layers of the encoder."""
    num_decoder_layers: int = whole(6, least=0, most=10_000)
    """Layers of the decoder."""

    # Feed-forward

    feed_forward_dim: int = whole(2048, least=0)
    """Features inside the feed-forward. 0: no feed-forward; the layer ends after its mixer (Mamba-2)."""
    feed_forward_bias: bool = True
    """Whether the linear maps of the feed-forward have biases."""
    gated: bool = False
    """Whether the activation is applied to a third projection, the gate, which multiplies the up projection (Shazeer
    2020)."""
    gate_limit: float | None = number(None, POSITIVE, None, 0.7, usual=(7.0, 10.0))
    """Bound of a gated feed-forward before the activation: the gate from above, the up projection from both sides
    (gpt-oss). None: no bound."""
    up_offset: float = number(0.0, NOT_NEGATIVE, 0.0, 1.0)
    """Added to the up projection before the gate multiplies it (gpt-oss: 1)."""
    activation: Activation = "relu"
    """`gelu`: x · Φ(x) (Hendrycks and Gimpel 2016); `gelu-tanh` and `gelu-quick`: its approximations by a tanh and by
    x · σ(1.702 x). `silu`: x · σ(x)."""

    # Experts

    num_experts: int = whole(0, 0, 4, least=0)
    """Number of parallel feed-forwards of width `feed_forward_dim`; a router chooses some for each token (Shazeer et
    al. 2017). 0: one feed-forward for all tokens; the other fields of experts have no effect."""
    experts_per_token: int = whole(2, 1, 2, 3)
    """Experts chosen for each token: the ones with the highest scores."""
    router_scores: RouterScores = "softmax"
    """Scores of a linear map of the token: the `softmax` over all experts, or the `sigmoid` of each (DeepSeek-V3)."""
    router_bias: bool = False
    """Whether the router's linear map has a bias."""
    router_score_bias: bool = False
    """Whether a bias is added to the scores that choose experts, but not to their weights (Wang et al. 2024). It has no
    gradient."""
    router_groups: int = whole(1, 1, 2)
    """Groups of consecutive experts. A group ranks by the sum of its two highest scores (DeepSeek-V3)."""
    topk_groups: int = whole(1, 1, 2)
    """Number of best groups from which a token's experts are chosen."""
    normalize_topk: bool = True
    """Whether the weights of the chosen experts are divided by their sum. With `softmax`, this equals a softmax over
    the chosen logits. If false, the weights are the scores."""
    router_scale: float = number(1.0, POSITIVE, 1.0, 2.5)
    """A further factor of the weights (DeepSeek-V3)."""
    shared_expert_dim: int = whole(0, 0, 3, least=0)
    """Features of an additional expert that every token uses (Dai et al. 2024). 0: none."""
    shared_expert_gate: bool = False
    """Whether the output of this expert is multiplied by the sigmoid of a linear map of the token (Qwen 2 MoE)."""

    # Normalization

    norm: NormKind = "layer"
    """`layer`: (x − mean) / √(variance + eps). `layer-unbiased`: (x − mean) / (deviation over n − 1, + eps).
    `batch`: over the batch and the positions, with running statistics. `rms`: x / √(mean of x² + eps), without a bias
    (Zhang and Sennrich 2019)."""
    norm_gain: NormGain = "weight"
    """Factor of a norm: its weight, or 1 + its weight (Gemma)."""
    norm_bias: bool = True
    """Whether the norms have biases; `rms` never has."""
    norm_eps: float = number(
        1e-5, NOT_NEGATIVE, 1e-5, 1e-2, 1e-12, usual=(1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0, 1e-2, 1e-4)
    )
    """Added to the variance under the root, or to the deviation (`layer-unbiased`)."""
    norm_momentum: float = number(0.1, SHARE)
    """Share of a new batch in `batch`'s running statistics (PyTorch's convention; Flax counts the rest)."""
    norm_position: NormPosition = "post"
    """`post`: norm(x + f(x)). `pre`: x + f(norm(x)). `sandwich`: x + norm(f(norm(x))) (Gemma 2).
    `post-branch`: x + norm(f(x)) (OLMo 2)."""
    branches: Branches = "sequential"
    """`sequential`: the feed-forward reads the stream after attention. `parallel`: both read the layer's input, x +
    attention(norm(x)) + feed_forward(norm(x)), each through its own norm (GPT-NeoX). `parallel-one-norm`: both use the
    same norm (GPT-J)."""
    attention_norm: bool = True
    """Whether a norm precedes self-attention if `norm_position` is `pre`. Without it, attention reads the stream
    unchanged (the first layer of ModernBERT, whose embeddings are normalized)."""
    residual_multiplier: float = number(1.0, POSITIVE, 1.0, 0.4)
    """Factor of each sublayer's output before it is added to the residual (Granite): x + multiplier · f(x)."""
    final_norm: bool = False
    """One more norm at the end of each stack."""
    memory_norm: bool = False
    """Whether each decoder layer normalizes the encoder's output before cross-attention."""

    # Attention

    projection: Projection = "full"
    """`full`: embed_dim → embed_dim, then split. `shared-per-head`: split, then head_dim → head_dim, one for all."""
    qkv_bias: bool = True
    """Whether the projections of queries, keys and values have biases."""
    key_bias: bool = True
    """Whether the key projection has a bias if `qkv_bias` is true (Whisper: no). A key bias shifts all scores of a
    query equally, so it changes no weight."""
    output_bias: bool = True
    """Whether the attention's output projection has a bias."""
    q_lora_rank: int | None = None
    """Features of the latent from which queries are projected; an RMS norm normalizes it. None: queries are projected
    from the stream. Requires `kv_lora_rank`."""
    kv_lora_rank: int | None = None
    """Features of the latent from which keys and values are projected; an RMS norm normalizes it. The last `rotary_dim`
    features of the keys are projected from the stream, shared by all heads. Only these are rotated (latent attention,
    DeepSeek-V2). None: keys and values are projected from the stream."""
    value_head_dim: int | None = None
    """Features of a value head. None: as many as a key head. Requires `kv_lora_rank`."""
    query_key_norm: bool = False
    """Whether an RMS norm normalizes queries and keys (Qwen 3)."""
    query_key_norm_over: QueryKeyNormOver = "head"
    """Features over which this norm is taken: each `head`, or the whole `projection` (OLMo 2)."""
    attention_scale: AttentionScale = "head_dim"
    """Scores are divided by the square root of this size."""
    attention_multiplier: float = number(1.0, POSITIVE, 1.0, 0.5)
    """A further factor of the scores."""
    attention_softcap: float | None = number(None, POSITIVE, None, 1.5, usual=(50.0, 30.0, 20.0, 10.0))
    """Scores become cap · tanh(scores / cap) before the mask (Gemma 2). None: no bound."""
    attention_sinks: bool = False
    """Whether the softmax of each head has one more, learned logit, which has no value (gpt-oss)."""
    sliding_window: int | None = whole(None, None, 1, 2, 3)
    """A position attends to positions less than this distance away (Beltagy et al. 2020). None: to all."""
    window_kind: WindowKind = "sliding"
    """`sliding`: the window surrounds each position. `chunked`: the sequence is cut into chunks of `sliding_window`
    positions, and a position attends only to its own chunk (Llama 4)."""
    query_temperature: float = number(0.0, NOT_NEGATIVE, 0.0, 0.7)
    """Self-attention multiplies queries by 1 + query_temperature · ln(1 + ⌊(position + query_temperature_first) /
    query_temperature_length⌋), so that later queries attend more sharply (Llama 4, Ministral 3). 0: no factor."""
    query_temperature_length: int = whole(8192, 8192, 2, 3)
    """Number of consecutive positions with the same temperature."""
    query_temperature_first: int = whole(0, 0, 1, least=0)
    """Number of the first position in this formula: 0 (Ministral 3) or 1 (Llama 4)."""
    mask_value: float = number(-math.inf, NOT_POSITIVE, -math.inf, -1e20, -1e9, -100.0, -3.0, -1e-20, 0.0)
    """Replacement of a masked score. −inf stands for the lowest number of the dtype. A fully masked row then weighs all
    its keys equally, instead of becoming NaN."""
    mask_order: MaskOrder = "after-scale"
    """Whether masked scores are replaced before the division by the scale or after it."""
    target_mask: TargetMask = "causal"
    """Mask of the decoder's self-attention: the future, or the future and the padding."""
    padding: Padding = "token"
    """Mark of padding in the tokens of a single stack, or in the source: the token `pad_id`, or an `attention_mask`. A
    decoder masks `pad_id` only if `target_mask` is `causal-and-padding`; an `attention_mask` always applies."""

    attention_gate: bool = False
    """Whether the context of all heads is multiplied by the sigmoid of a linear map of the attention's input, before
    the output projection (Qwen3-Next)."""

    # Recurrence

    mixer: Mixer = "attention"
    """How a layer mixes positions. `attention`: self-attention. `gated-delta`: a recurrence that decays and corrects
    its state (Yang et al. 2025, Qwen3-Next). `state-space`: a recurrence that decays its state and adds to it (Dao and
    Gu 2024, Mamba-2). Recurrences need a single decoder."""
    recurrent_heads: int = whole(32, 4, 2)
    """Heads of a recurrence, each with a state of `recurrent_key_dim` × `recurrent_value_dim` numbers. Without a
    recurrence, its fields have no effect."""
    recurrent_key_heads: int = whole(16, 2, 1)
    """Heads of the queries and keys of a recurrence. Consecutive value heads share one."""
    recurrent_key_dim: int = whole(128, 5, 3)
    """Features of a query or key head of a recurrence."""
    recurrent_value_dim: int = whole(128, 3, 6)
    """Features of a value head of a recurrence."""
    convolution_width: int = whole(4, 4, 2, 1)
    """Width of the causal convolution of queries, keys and values in a recurrence."""
    convolution_bias: bool = False
    """Whether these convolutions have biases (Mamba-2)."""
    recurrent_bias: bool = False
    """Whether the linear maps of a recurrence have biases."""
    time_step_min: float = number(0.0, NOT_NEGATIVE, 0.0, 0.3)
    """Lower bound of the time step of a recurrence (`time_step_limit` of Mamba-2)."""
    time_step_max: float | None = number(None, POSITIVE, None, 0.8)
    """Upper bound of the time step. None: no bound."""

    # Layers that differ

    layer_types: tuple[str, ...] = ()
    """Names of the kinds of layers, a cycle that starts with the first layer. Empty: all layers are alike."""
    layer_overrides: Mapping[str, Mapping[str, Any]] = Overrides({})
    """For each kind of layer, the fields that differ from the rest of the configuration. Allowed are `sliding_window`,
    `window_kind`, `query_temperature`, `positions` (`none` where others are `rotary`), `rope_theta`, the fields of
    rotary scaling, `num_experts`, `feed_forward_dim`, `attention_norm` and `mixer`."""

    # Positions

    positions: Positions = "learned"
    """`learned` and `sinusoidal` positions are added to the embeddings. `rotary` rotates queries and keys (Su et al.
    2021). `relative` adds a learned bias to the scores for each head and bucket of distances (Raffel et al. 2020).
    `alibi` subtracts slope · distance from the scores, with one slope per head (Press et al. 2022)."""
    encoder_positions: EncoderPositions = "as-decoder"
    """Positions of the encoder if they differ from the decoder's (Whisper: `sinusoidal` in the encoder, `learned` in
    the decoder)."""
    sinusoidal_timescales: Timescales = "exclusive"
    """Largest timescale of sinusoidal positions. `exclusive`: below theta, theta^(2 i / features). `inclusive`: theta
    itself, theta^(i / (features / 2 − 1)) (tensor2tensor, Whisper)."""
    position_offset: int = whole(0, least=0)
    """Row of the first token in the table of learned positions. The table has this number of additional rows."""
    position_count: PositionCount = "all"
    """Whether `all` tokens count in positions, or only the `visible` ones. Padding has the position before the first
    (RoBERTa, OPT)."""
    rope_layout: RopeLayout = "interleaved"
    """Pairs of features that share an angle, sinusoidal or rotary: neighbors (`interleaved`), or half the width apart
    (`halves`)."""
    rope_theta: float = number(
        10_000.0, POSITIVE, 10_000.0, 5.0, usual=(10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 1000.0)
    )
    """Angles are position / theta^(2 i / features)."""
    rotary_dim: int | None = whole(None, None, 2)
    """Number of features of each head that are rotated, from the first on. None: all."""
    rotary_scaling: RotaryScaling = "none"
    """`linear` divides positions by `rotary_factor`. `llama3` does so only for slow angles, with a smooth transition to
    the fast ones (Llama 3.1). `yarn` has a transition that is linear in the pairs of features (Peng et al. 2024).
    `longrope` divides each angle by its own factor, and by another factor in sequences beyond `rotary_original_length`
    (Ding et al. 2024)."""
    rotary_factor: float = number(1.0, POSITIVE, 1.0, 3.0)
    """Divisor of scaled positions."""
    rotary_slow_turns: float = number(1.0, POSITIVE)
    """Slow angles make fewer turns than this in `rotary_original_length`."""
    rotary_fast_turns: float = number(4.0, POSITIVE)
    """Fast angles make more turns than this in `rotary_original_length`."""
    rotary_original_length: int = whole(8192, 8, 64, 3)
    """The longest sequence of the model before its positions were scaled."""
    rotary_truncate: bool = True
    """Whether the transition of `yarn` starts and ends at whole pairs (gpt-oss: also between two pairs)."""
    rotary_attention_factor: float = number(1.0, POSITIVE, 1.0, 1.3)
    """Factor of the rotated features of queries and of keys (`attention_factor` of YaRN and LongRoPE)."""
    rotary_short_factors: tuple[float, ...] = numbers(POSITIVE)
    """Divisors of each angle with `longrope`, in sequences up to `rotary_original_length`."""
    rotary_long_factors: tuple[float, ...] = numbers(POSITIVE)
    """Divisors of each angle with `longrope`, in longer sequences."""
    relative_bias: bool = False
    """Whether scores have the bias of `relative` in addition to positions that are added to the embeddings (MPNet)."""
    relative_buckets: int = 32
    """Buckets of distances; half of them for each direction if both are visible."""
    relative_max_distance: int = 128
    """The last bucket holds this distance and all larger ones."""

    # Embedding and head

    patch_size: int | None = None
    """Side of the square patches of an image, in pixels. The encoder reads `pixels`, and a linear map embeds each patch
    (Dosovitskiy et al. 2021). None: it reads tokens."""
    image_channels: int = 3
    """Channels of an image. A patch is read channel by channel, each row by row."""
    patch_bias: bool = True
    """Whether the linear map of patches has a bias (CLIP's has none)."""
    class_token: bool = False
    """Whether a learned vector precedes the patches. `max_length` is the number of patches of a square image, plus 1
    with this vector."""
    mel_bins: int | None = None
    """Mel bins of a log-mel spectrogram. The encoder's `source` has the shape (batch, mel_bins, num_frames). Two
    convolutions of width 3, each followed by GELU, embed it; the second has stride 2 (Radford et al. 2022). None: it
    reads tokens."""
    num_frames: int = whole(3000, least=2)
    """Frames of every spectrogram, an even number. The encoder has half this number of positions, independent of
    `max_length`."""
    num_token_types: int = whole(0, least=0)
    """Token types (sentences A and B of BERT); each has an embedding, which is added. 0: none."""
    embedding_scale: EmbeddingScale = "none"
    """`embed_dim`: token embeddings are multiplied by √embed_dim before the positions are added."""
    embedding_multiplier: float = number(1.0, POSITIVE, 1.0, 3.0)
    """A further factor of the token embeddings (Granite)."""
    embedding_norm: bool = False
    """Whether the sum of the embeddings is normalized (BERT, BART)."""
    shared_embedding: bool = False
    """Whether the decoder uses the encoder's table of token embeddings."""
    head: Head = "logits"
    """Output of the model. `logits`: over the vocabulary. `hidden`: the output of the last layer. `pooled`: one state
    per row. `classes`: logits over classes, a linear map of the pooled state."""
    pooling: Pooling = "first"
    """Position of the pooled state: the `first` (BERT), the `mean` of the visible ones (Reimers and Gurevych 2019), or
    the `last` visible one (the classifier of GPT-2). `eos`: the first `eos_id`, or the first position of a row without
    one (CLIP). `largest`: the largest token, or the first of several (the code of CLIP until 2023)."""
    pooler: Pooler = "tanh"
    """Activation after a linear map of the pooled state (`tanh` in BERT, `relu` in DistilBERT's classifier). `none`:
    the state is unchanged."""
    num_classes: int = whole(2, 2, 3, 1)
    """Classes of a head of `classes`."""
    tied_head: bool = False
    """Whether the head uses the token embeddings as its weight (Press and Wolf 2017)."""
    head_transform: bool = False
    """Whether a linear map, the activation and a norm precede the head (the masked-word head of BERT)."""
    head_transform_bias: bool = True
    """Whether this linear map has a bias."""
    head_bias: bool = True
    """Whether the head has a bias."""
    head_scale: HeadScale = "none"
    """`embed_dim`: the input of the head is divided by √embed_dim (T5)."""
    head_multiplier: float = number(1.0, POSITIVE, 1.0, 0.5)
    """A further factor of the head's input (Granite and Cohere)."""
    final_softcap: float | None = number(None, POSITIVE, None, 2.0, usual=(50.0, 30.0, 20.0, 10.0))
    """Logits become cap · tanh(logits / cap) (Gemma 2). None: no bound."""

    # Dropout

    dropout: float = number(0.0, PROBABILITY)
    """Probability that training drops a feature; evaluation drops nothing."""
    dropout_at: tuple[DropoutPlace, ...] = ("embedding", "attention.output", "feed_forward.output")
    """Taps that dropout applies to; by default as in Vaswani et al. 2017, §5.4."""

    # Tokens

    pad_id: int | None = whole(0, 0, 1, None, least=0)
    """The token that pads short sequences; None: no padding."""
    bos_id: int | None = whole(None, least=0)
    """The token that generation starts from."""
    eos_id: int | None = whole(None, least=0)
    """The token that generation ends with."""

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name)))
        check_together(self)
        overrides = differing(self, self.layer_kinds)
        object.__setattr__(self, "layer_overrides", overrides)
        if not overrides:
            object.__setattr__(self, "layer_types", ())
        del self.__dict__["layer_kinds"]  # it had the overrides that change nothing

    @property
    def has_encoder(self) -> bool:
        return self.architecture != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder"

    @property
    def mask_is_exact(self) -> bool:
        """Return whether masked keys weigh exactly 0 (`EXACT_MASK_BELOW`), so that no token depends on later ones.

        A fully masked row is the exception: all its keys have equal weights.
        """
        return self.masked_score < EXACT_MASK_BELOW

    @property
    def angles_depend_on_length(self) -> bool:
        """Return whether angles change when a sequence exceeds `rotary_original_length` (LongRoPE)."""
        kinds = [own for own in self.layer_kinds.values() if own.positions == "rotary"]
        return any(own.rotary_scaling == "longrope" and own.rotary_original_length < self.max_length for own in kinds)

    @property
    def prefixes_agree(self) -> bool:
        """Return whether no output of a decoder depends on later tokens, so that keys and values can be cached."""
        return self.mask_is_exact and not self.angles_depend_on_length and not self.is_pooled

    @property
    def score_scale(self) -> float:
        """Factor of the scores: head_dim^−½ (Vaswani et al. 2017, eq. 1), embed_dim^−½ (001, 002, 004) or 1 (T5), times
        `attention_multiplier`."""
        features = {"head_dim": self.head_dim, "embed_dim": self.embed_dim, "none": 1}[self.attention_scale]
        return float(features**-0.5) * self.attention_multiplier

    @property
    def token_scale(self) -> float:
        """Factor of the token embeddings: √embed_dim (Vaswani et al. 2017, §3.4) or 1, times `embedding_multiplier`."""
        return float({"none": 1.0, "embed_dim": self.embed_dim**0.5}[self.embedding_scale] * self.embedding_multiplier)

    @property
    def head_input_scale(self) -> float:
        """Factor of the head's input: embed_dim^−½ (T5) or 1, times `head_multiplier`."""
        return float({"none": 1.0, "embed_dim": self.embed_dim**-0.5}[self.head_scale] * self.head_multiplier)

    @property
    def masked_score(self) -> float:
        """Replacement of a masked score after scaling; masking before the scale scales `mask_value` too."""
        return self.mask_value * self.score_scale if self.mask_order == "before-scale" else self.mask_value

    @property
    def is_pooled(self) -> bool:
        """Return whether the output is one vector for each row, of its pooled state."""
        return self.head in ("pooled", "classes")

    @property
    def has_pooler(self) -> bool:
        """Return whether the pooled state goes through a linear map and an activation."""
        return self.is_pooled and self.pooler != "none"

    @property
    def head_size(self) -> int:
        """The number of features of the output: tokens of the vocabulary, classes, or features of a state."""
        if self.head == "logits":
            return self.vocab_size
        return self.num_classes if self.head == "classes" else self.embed_dim

    @property
    def has_tied_head(self) -> bool:
        """Return whether the token embeddings are the head's weight; `tied_head` applies only to logits."""
        return self.head == "logits" and self.tied_head

    @property
    def filling_id(self) -> int:
        """Filler token: pad, else EOS, else 0."""
        return next((token for token in (self.pad_id, self.eos_id) if token is not None), 0)

    @property
    def ending_id(self) -> int:
        """EOS, or −1, which equals no token."""
        return -1 if self.eos_id is None else self.eos_id

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.attention_head_dim or self.embed_dim // self.num_heads

    @property
    def has_norm_bias(self) -> bool:
        """Whether the norms of the features have biases."""
        return self.norm_bias and self.norm != "rms"

    @property
    def key_value_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def attention_dim(self) -> int:
        """Total features of all heads."""
        return self.num_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Features of a head of the values."""
        return self.value_head_dim or self.head_dim

    @property
    def context_dim(self) -> int:
        """Total value features of all heads."""
        return self.num_heads * self.value_dim

    @property
    def is_recurrent(self) -> bool:
        """Whether this layer, or any layer of the model, mixes positions by a recurrence."""
        return any(own.mixer != "attention" for own in (self, *self.layer_kinds.values()))

    @property
    def attends_never(self) -> bool:
        """Whether every layer mixes positions by a recurrence."""
        return all(own.mixer != "attention" for own in self.layer_kinds.values())

    @property
    def mixer_scope(self) -> str:
        """Name of the mixer in this layer's parameters, taps and cache."""
        return "self_attention" if self.mixer == "attention" else "recurrence"

    @property
    def mixer_name(self) -> str:
        """Name of the mixer of this layer: `latent` attention where `kv_lora_rank` is set, else `mixer`."""
        return "latent" if self.kv_lora_rank else self.mixer

    @property
    def rotary_depends_on_length(self) -> bool:
        """Whether rotary angles differ in sequences beyond the original length."""
        return self.rotary_scaling == "longrope"

    @property
    def recurrent_dim(self) -> int:
        """Total features of all heads of a recurrence."""
        return self.recurrent_heads * self.recurrent_value_dim

    @property
    def convolution_dims(self) -> dict[str, int]:
        """Total features of the queries, keys and values of a recurrence, over all heads."""
        keys = self.recurrent_key_heads * self.recurrent_key_dim
        return {"query": keys, "key": keys, "value": self.recurrent_dim}

    @property
    def projected_key_dim(self) -> int:
        """Features of a key head that are projected per head: all, or only the ones that are not rotated."""
        return self.head_dim - (self.rotated_dim if self.kv_lora_rank else 0)

    @property
    def rotated_dim(self) -> int:
        """Features of a head that rotary positions rotate."""
        return self.rotary_dim or self.head_dim

    @property
    def has_relative_bias(self) -> bool:
        """Return whether distances have learned biases, also in addition to other positions."""
        return self.positions == "relative" or self.relative_bias

    @property
    def has_tables(self) -> bool:
        """Whether a stack has sines and cosines of positions, rotary or added to the embeddings."""
        return "sinusoidal" in (self.positions, self.encoder_positions) or self.positions == "rotary"

    @property
    def num_positions(self) -> int:
        """Rows of the table of learned positions."""
        return self.max_length + self.position_offset

    @functools.cached_property
    def layer_kinds(self) -> dict[str, TransformerConfig]:
        """The configuration of each kind of layer; the only kind is `all` without `layer_types`."""
        return kinds_of(self, self.layer_types, self.layer_overrides)

    def layer_kind(self, stack: str, layer: int) -> str:
        """The kind of a layer of `stack` (the first is 0), a key of `layer_kinds`."""
        return self.layer_types[layer % len(self.layer_types)] if self.layer_types else ALIKE

    def for_layer(self, stack: str, layer: int) -> TransformerConfig:
        """The configuration for a layer of `stack` (the first is 0), as if all layers were of its kind."""
        return self.layer_kinds[self.layer_kind(stack, layer)]

    def for_stack(self, stack: str) -> TransformerConfig:
        """The configuration for the embedding of a stack, with the stack's own kind and number of positions."""
        differs = self.encoder_positions != "as-decoder" or self.reads_frames
        return self.encoder_view if stack == "encoder" and differs else self

    @functools.cached_property
    def encoder_view(self) -> TransformerConfig:
        """The configuration for the encoder's embedding, if it differs from the decoder's."""
        positions = self.positions if self.encoder_positions == "as-decoder" else self.encoder_positions
        length = self.frame_positions if self.reads_frames else self.max_length
        is_itself = (length, positions) == (self.max_length, self.positions)
        return self if is_itself else dataclasses.replace(self, max_length=length, positions=positions)

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the logits: the decoder's, or a lone encoder's."""
        return self.stack_vocab_size("decoder" if self.has_decoder else "encoder")

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model: `encoder`, `decoder` or both."""
        return ("encoder",) * self.has_encoder + ("decoder",) * self.has_decoder

    def stack_num_layers(self, stack: str) -> int:
        """The layers of `stack` (`encoder` or `decoder`)."""
        return self.num_encoder_layers if stack == "encoder" else self.num_decoder_layers

    def stack_vocab_size(self, stack: str) -> int:
        """Size of the vocabulary of `stack` (`encoder` or `decoder`)."""
        size = self.source_vocab_size if stack == "encoder" else self.target_vocab_size
        assert size is not None  # held on construction
        return size

    def input_kind(self, stack: str) -> Literal["tokens", "patches", "frames"]:
        """Return what a stack reads."""
        if self.reads_pixels:
            return "patches"
        return "frames" if self.reads_frames and stack == "encoder" else "tokens"

    @property
    def reads_pixels(self) -> bool:
        """Whether the input is an image instead of tokens."""
        return self.patch_size is not None

    @property
    def reads_frames(self) -> bool:
        """Whether the encoder reads frames of audio instead of tokens."""
        return self.mel_bins is not None

    @property
    def frame_positions(self) -> int:
        """Number of encoder positions for the frames of audio."""
        return self.num_frames // 2

    @property
    def image_size(self) -> int:
        """Side of the image in pixels; 0 without images."""
        return math.isqrt(self.max_length - self.class_token) * (self.patch_size or 0)

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch; 0 without images."""
        return self.image_channels * (self.patch_size or 0) ** 2

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs of `forward`: `source` (tokens or frames) and `target`, or `tokens`, or `pixels`."""
        if self.reads_pixels:
            return ("pixels",)
        return ("source", "target") if self.architecture == "encoder-decoder" else ("tokens",)

    @property
    def token_inputs(self) -> tuple[str, ...]:
        """The inputs that are token ids. Images and frames of audio are not."""
        if self.reads_pixels:
            return ()
        return ("target",) if self.reads_frames else self.input_names

    def positions_of(self, name: str) -> int | None:
        """Fixed number of positions of the input `name`, for images and frames; None for tokens."""
        if name in self.token_inputs:
            return None
        return self.max_length if self.reads_pixels else self.frame_positions

    @property
    def decoder_mask(self) -> TargetMask:
        """Mask of the decoder's self-attention: `target_mask`, and padding if an `attention_mask` is given."""
        masked = self.padding == "attention-mask" and self.architecture == "decoder"
        return "causal-and-padding" if masked else self.target_mask

    @property
    def further_inputs(self) -> tuple[str, ...]:
        """Further inputs of `forward`, in the shape of the first of `input_names`."""
        masked, typed = self.padding == "attention-mask", self.num_token_types > 0
        return ("attention_mask",) * masked + ("token_types",) * typed

    def input_stack(self, name: str) -> str:
        """The stack that reads the input `name`."""
        if name in ("tokens", "pixels"):
            return "decoder" if self.has_decoder else "encoder"
        return "encoder" if name == "source" else "decoder"

    def resized(self, **sizes: Any) -> TransformerConfig:
        """Return the same system at another size: small enough for a probe, and with `sizes` replaced.

        The feed-forward keeps its proportion to `embed_dim` unless `feed_forward_dim` is given. Sizes of a stack that
        the architecture lacks are ignored.
        """
        unknown = set(sizes) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ConfigError(f"resized() was given {listed(sorted(unknown))}, which no configuration has.")
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
        """Return a copy with other `sizes`; LongRoPE's factors are interpolated to the new number of angles."""
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
        """Read fields that `as_dict` of any version wrote; raises `ConfigError` for unknown or missing ones."""
        if not isinstance(fields, dict):
            raise ConfigError(f"A configuration is an object of fields, but {type(fields).__name__} was given.")
        fields, known = renamed(fields), [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                hub = "; a hub's config.json is imported with its checkpoint" if "model_type" in fields else ""
                close = difflib.get_close_matches(safe(name, VALUE), known, 1)
                nearest = f"the nearest is {close[0]}" if close else "expected those of TransformerConfig"
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
        """Read the result of `to_json`; raises `ConfigError` if `text` is not JSON."""
        try:
            fields = json.loads(text, object_pairs_hook=without_repetition)
        except (ValueError, RecursionError, TypeError) as error:
            raise ConfigError(f"The configuration is not JSON: {reason(error)}.") from None
        return cls.from_dict(fields)


FIELD_TYPES = get_type_hints(TransformerConfig)
"""The type of each field by name."""

CHECKS = {field.name: check_of(field, FIELD_TYPES[field.name]) for field in dataclasses.fields(TransformerConfig)}
"""The check of each field by name."""
