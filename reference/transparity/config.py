"""One frozen description of a transformer: every difference between two systems is one field."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from transparity.errors import ConfigError, shown

Architecture = Literal["encoder-decoder", "decoder", "encoder"]
Activation = Literal["relu", "gelu", "gelu-tanh", "gelu-quick", "silu"]
NormKind = Literal["layer", "layer-unbiased", "batch", "rms"]
NormGain = Literal["weight", "one-plus-weight"]
NormPosition = Literal["pre", "post", "both"]
Projection = Literal["full", "shared-per-head"]
AttentionScale = Literal["head_dim", "embed_dim", "none"]
MaskOrder = Literal["before-scale", "after-scale"]
TargetMask = Literal["causal", "causal-and-padding"]
Padding = Literal["token", "attention-mask"]
Positions = Literal["learned", "sinusoidal", "rotary", "relative", "alibi", "none"]
PositionCount = Literal["all", "visible"]
RopeLayout = Literal["interleaved", "halves"]
RotaryScaling = Literal["none", "linear", "llama3"]
EmbeddingScale = Literal["none", "embed_dim"]
Head = Literal["logits", "hidden", "pooled"]
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
"""How the names of the taps end that are dropped from."""

EXACT_MASK_BELOW = -1e6
"""Below this, the weight of a hidden key underflows to exactly 0 in every precision, so that leaving the key out is the
same as replacing its score; above it (document 000's −1e-20) it is not, and only the explicit path is right."""

PROBE_SIZES = {
    "source_vocab_size": 37,
    "target_vocab_size": 31,
    "max_length": 11,
    "embed_dim": 24,
    "num_heads": 3,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Everything that two transformers may differ in, one orthogonal field each.

    Raises `ConfigError`, naming the field, the value and what would be right, if the whole is impossible.
    Fields of a stack that the architecture lacks (a decoder's `source_vocab_size`) are not read.
    """

    architecture: Architecture
    """`encoder-decoder`, or one stack alone: `decoder` (causal) or `encoder` (sees everything)."""
    source_vocab_size: int | None = None
    """Tokens that the encoder knows."""
    target_vocab_size: int | None = None
    """Tokens that the decoder knows."""
    max_length: int = 100
    """The longest sequence, in tokens."""
    embed_dim: int = 512
    """Features of a token; a multiple of `num_heads`, unless `attention_head_dim` says how wide a head is."""
    num_heads: int = 8
    num_key_value_heads: int | None = None
    """Heads that keys and values have, each for as many consecutive query heads as divide evenly (Ainslie et al. 2023);
    None: as many as queries have. 1: one for all (Shazeer 2019)."""
    attention_head_dim: int | None = None
    """Features of a head; None: embed_dim / num_heads."""
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    feed_forward_dim: int = 2048
    """Features inside the feed-forward."""
    feed_forward_bias: bool = True
    gated: bool = False
    """The activation is of a third projection, the gate, and multiplies what goes up (Shazeer 2020)."""
    activation: Activation = "relu"
    """`gelu`: x · Φ(x) (Hendrycks and Gimpel 2016); `gelu-tanh` and `gelu-quick`: its approximations by a tanh and by
    x · σ(1.702 x). `silu`: x · σ(x)."""
    norm: NormKind = "layer"
    """`layer`: (x − mean) / √(variance + eps). `layer-unbiased`: (x − mean) / (deviation over n − 1, + eps).
    `batch`: over the batch and the positions, with running statistics. `rms`: x / √(mean of x² + eps), without a bias
    (Zhang and Sennrich 2019)."""
    norm_gain: NormGain = "weight"
    """What a norm multiplies by: its weight, or 1 + its weight (Gemma)."""
    norm_eps: float = 1e-5
    norm_momentum: float = 0.1
    """The share of a new batch in `batch`'s running statistics (PyTorch's convention; Flax counts the rest)."""
    norm_position: NormPosition = "post"
    """`post`: norm(x + f(x)). `pre`: x + f(norm(x)). `both`: x + norm(f(norm(x))) (Gemma 2)."""
    final_norm: bool = False
    """One more norm at the end of each stack."""
    memory_norm: bool = False
    """Each decoder layer normalises the encoder's output before it looks at it."""
    projection: Projection = "full"
    """`full`: embed_dim → embed_dim, then split. `shared-per-head`: split, then head_dim → head_dim, one for all."""
    qkv_bias: bool = True
    output_bias: bool = True
    """Whether the attention's output projection has a bias."""
    query_key_norm: bool = False
    """Queries and keys are normalised, each head by itself, by an RMS norm (Qwen 3)."""
    attention_scale: AttentionScale = "head_dim"
    """Scores are divided by the root of this."""
    attention_multiplier: float = 1.0
    """Scores are multiplied by this, too."""
    attention_softcap: float | None = None
    """Scores are held below this by cap · tanh(scores / cap), before the mask (Gemma 2); None: they are not."""
    sliding_window: int | None = None
    """A position sees those less than this far away, and itself (Beltagy et al. 2020); None: all."""
    full_attention_every: int | None = None
    """Every so many layers, the last of them sees beyond the `sliding_window`; None: none does."""
    mask_value: float = -math.inf
    """What a hidden score is replaced by. −inf stands for the lowest number of the dtype: the same weights, and a
    row that sees nothing weighs all its keys alike, as it does with every other value, instead of being NaN."""
    mask_order: MaskOrder = "after-scale"
    """Whether hidden scores are replaced before the division by the scale or after it."""
    target_mask: TargetMask = "causal"
    """What the decoder's self-attention hides: the future, or the future and the padding."""
    padding: Padding = "token"
    """What tells the padding of a lone stack's tokens, or of the source: `pad_id` among them, or a mask that is given
    beside them, which attention hides by, whatever `target_mask` says."""
    positions: Positions = "learned"
    """`learned` and `sinusoidal` are added to the embeddings. `rotary` turns queries and keys (Su et al. 2021).
    `relative`: a learned number for each head and bucket of distances is added to scores (Raffel et al. 2020).
    `alibi`: a share of the distance, one for each head, is taken off scores (Press et al. 2022)."""
    position_offset: int = 0
    """The learned position of the first token; the table has so many rows more."""
    position_count: PositionCount = "all"
    """Which tokens positions count: `all`, or only those that are no padding, which has the position in front of the
    first (RoBERTa, OPT)."""
    rope_layout: RopeLayout = "interleaved"
    """Which two features share an angle, sinusoidal or rotary: neighbours, or those half of all features apart."""
    rope_theta: float = 10_000.0
    """Angles are position / base^(2 i / features)."""
    rotary_dim: int | None = None
    """The first features of a head that are turned; None: all."""
    rotary_scaling: RotaryScaling = "none"
    """`linear`: positions are divided by `rotary_factor`. `llama3`: the slow angles alone are, the fast ones are not,
    and between them it is blended (Llama 3.1)."""
    rotary_factor: float = 1.0
    rotary_low_frequency: float = 1.0
    """Slow angles are those that turn less often than this in `rotary_original_length`."""
    rotary_high_frequency: float = 4.0
    """Fast angles are those that turn more often than this."""
    rotary_original_length: int = 8192
    relative_buckets: int = 32
    """Buckets of distances; where both directions are seen, half of them for each."""
    relative_max_distance: int = 128
    """What is as far as this, or farther, is in the last bucket."""
    num_token_types: int = 0
    """Kinds of tokens (BERT's sentences A and B), an embedding of each, which is added; 0: there are none."""
    embedding_scale: EmbeddingScale = "none"
    """`embed_dim`: token embeddings are multiplied by √embed_dim before the positions are added."""
    embedding_norm: bool = False
    """The sum of the embeddings is normalised (BERT, BART)."""
    shared_embedding: bool = False
    """The decoder's tokens are embedded by the encoder's table."""
    head: Head = "logits"
    """What comes out: `logits` over the vocabulary; `hidden`, what the last layer says; `pooled`: of that, the first
    position's, through a linear map and tanh (BERT)."""
    tied_head: bool = False
    """The head multiplies by the token embeddings instead of a weight of its own (Press and Wolf 2017)."""
    head_bias: bool = True
    head_scale: HeadScale = "none"
    """`embed_dim`: what goes into the head is divided by √embed_dim (T5)."""
    final_softcap: float | None = None
    """Logits are held below this by cap · tanh(logits / cap) (Gemma 2); None: they are not."""
    dropout: float = 0.0
    """The share that training drops; evaluation never drops."""
    dropout_at: tuple[DropoutPlace, ...] = ("embedding", "attention.output", "feed_forward.output")
    """The taps that training drops from; by default as in Vaswani et al. 2017, §5.4."""
    pad_id: int | None = 0
    """The token that fills up short sequences; None if there is no such token."""
    bos_id: int | None = None
    """The token that generation starts from."""
    eos_id: int | None = None
    """The token that generation ends with."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _checked(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        _check_together(self)

    @property
    def has_encoder(self) -> bool:
        return self.architecture != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder"

    @property
    def mask_is_exact(self) -> bool:
        """Whether masked keys weigh exactly 0 (`EXACT_MASK_BELOW`), so that no token depends on later ones, except
        in a row that is masked entirely: its keys all weigh alike."""
        return self.masked_score < EXACT_MASK_BELOW

    @property
    def score_scale(self) -> float:
        """Factor of the scores: head_dim^−½ (Vaswani et al. 2017, eq. 1), embed_dim^−½ (001, 002, 004) or 1 (T5), times
        `attention_multiplier`."""
        features = {"head_dim": self.head_dim, "embed_dim": self.embed_dim, "none": 1}[self.attention_scale]
        return float(features**-0.5) * self.attention_multiplier

    @property
    def masked_score(self) -> float:
        """Replacement of a masked score after scaling; masking before the scale scales `mask_value` too."""
        return self.mask_value * self.score_scale if self.mask_order == "before-scale" else self.mask_value

    @property
    def filling_id(self) -> int:
        """The token that stands where there is none: padding or, without it, the end, or any."""
        return next((token for token in (self.pad_id, self.eos_id) if token is not None), 0)

    @property
    def ending_id(self) -> int:
        """The token that ends a text; −1, which none is, if there is no such token."""
        return -1 if self.eos_id is None else self.eos_id

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.attention_head_dim or self.embed_dim // self.num_heads

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and of values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def attention_dim(self) -> int:
        """Features of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def rotated_dim(self) -> int:
        """Features of a head that rotary positions turn."""
        return self.rotary_dim or self.head_dim

    @property
    def num_positions(self) -> int:
        """Rows of a table of positions."""
        return self.max_length + self.position_offset

    def layer_window(self, layer: int) -> int | None:
        """How far the layer sees, the first being 0; None: as far as there is something."""
        sees_all = self.full_attention_every is not None and (layer + 1) % self.full_attention_every == 0
        return None if sees_all else self.sliding_window

    @property
    def vocab_size(self) -> int:
        """The tokens that the logits are over: the decoder's, or a lone encoder's."""
        return self.stack_vocab_size("decoder" if self.has_decoder else "encoder")

    @property
    def stacks(self) -> tuple[str, ...]:
        """What the model has of `encoder` and `decoder`."""
        return ("encoder",) * self.has_encoder + ("decoder",) * self.has_decoder

    def stack_num_layers(self, stack: str) -> int:
        """The layers of `stack` (`encoder` or `decoder`)."""
        return self.num_encoder_layers if stack == "encoder" else self.num_decoder_layers

    def stack_vocab_size(self, stack: str) -> int:
        """The tokens that `stack` (`encoder` or `decoder`) knows."""
        size = self.source_vocab_size if stack == "encoder" else self.target_vocab_size
        assert size is not None  # held on construction
        return size

    @property
    def input_names(self) -> tuple[str, ...]:
        """What `forward` is called with: `source` and `target`, or `tokens`."""
        return ("source", "target") if self.architecture == "encoder-decoder" else ("tokens",)

    @property
    def decoder_mask(self) -> TargetMask:
        """What the decoder's self-attention hides: as `target_mask` says, and padding wherever a mask tells it."""
        masked = self.padding == "attention-mask" and self.architecture == "decoder"
        return "causal-and-padding" if masked else self.target_mask

    @property
    def inputs_beside(self) -> tuple[str, ...]:
        """What `forward` is given beside tokens, of the shape of the first of `input_names`."""
        masked, typed = self.padding == "attention-mask", self.num_token_types > 0
        return ("attention_mask",) * masked + ("token_types",) * typed

    def input_stack(self, name: str) -> str:
        """The stack that reads the input `name`."""
        if name == "tokens":
            return "decoder" if self.has_decoder else "encoder"
        return "encoder" if name == "source" else "decoder"

    def resized(self, **sizes: Any) -> TransformerConfig:
        """The same system at another size: small enough for a probe, with what is named in `sizes` replaced.

        The feed-forward keeps its proportion to `embed_dim` unless `feed_forward_dim` is given; sizes of a stack that
        the architecture lacks are left out, so that one call serves every preset.
        """
        unknown = set(sizes) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ConfigError(f"resized() was given {', '.join(sorted(unknown))}, which no configuration has.")
        sizes = PROBE_SIZES | self._probe_sizes() | sizes
        for stack, names in (
            (self.has_encoder, ("source_vocab_size", "num_encoder_layers")),
            (self.has_decoder, ("target_vocab_size", "num_decoder_layers")),
        ):
            if not stack:
                sizes = {name: value for name, value in sizes.items() if name not in names}
        embed_dim = _checked("embed_dim", sizes["embed_dim"])
        sizes.setdefault("feed_forward_dim", max(1, self.feed_forward_dim * embed_dim // self.embed_dim))
        return dataclasses.replace(self, **sizes)

    def _probe_sizes(self) -> dict[str, Any]:
        """What there is to resize in some systems alone."""
        sizes: dict[str, Any] = {}
        if self.key_value_heads < self.num_heads:
            sizes |= {"num_heads": 4, "num_key_value_heads": 1 if self.key_value_heads == 1 else 2}
        elif self.num_key_value_heads:
            sizes |= {"num_key_value_heads": None}
        if self.attention_head_dim:
            sizes |= {"attention_head_dim": None if self.attention_dim == self.embed_dim else 10}
        if self.rotary_dim:
            sizes |= {"rotary_dim": None if self.rotary_dim == self.head_dim else 4}
        if self.sliding_window:
            sizes |= {"sliding_window": 4}
        if self.full_attention_every:
            sizes |= {"full_attention_every": min(self.full_attention_every, 2)}
        if self.positions == "relative":
            sizes |= {"relative_buckets": 8, "relative_max_distance": 9}
        if self.rotary_scaling == "llama3":
            sizes |= {"rotary_original_length": 256}
        return sizes

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON values; −inf is the string `"-inf"`, for JSON has no number for it."""
        fields = dataclasses.asdict(self)
        lowest = "-inf" if self.mask_value == -math.inf else self.mask_value
        return fields | {"mask_value": lowest, "dropout_at": list(self.dropout_at)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TransformerConfig:
        """The configuration that `as_dict` wrote; raises `ConfigError` for a field that is unknown or missing."""
        if not isinstance(fields, dict):
            raise ConfigError(f"A configuration is an object of fields, but {type(fields).__name__} was given.")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                hub = "; a hub's config.json is imported with its checkpoint" if "model_type" in fields else ""
                raise ConfigError(f"A configuration has no field {name!r}{hub}; its fields are {', '.join(known)}.")
        if "architecture" not in fields:
            raise ConfigError(f"architecture is missing; it should be one of {', '.join(get_args(Architecture))}.")
        if fields.get("mask_value") == "-inf":
            fields = fields | {"mask_value": -math.inf}
        return cls(**fields)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TransformerConfig:
        """The configuration that `to_json` wrote; raises `ConfigError` if `text` is not JSON."""
        try:
            fields = json.loads(text, object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError, TypeError) as error:
            raise ConfigError(f"The configuration is not JSON: {error}.") from None
        return cls.from_dict(fields)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; `json` alone would keep the last of two fields of one name, in silence."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"a field stands twice among {', '.join(name for name, _ in pairs)}")
    return fields


def _check_together(config: TransformerConfig) -> None:
    """Hold what no single field can say."""
    needed = [("source_vocab_size", config.has_encoder), ("target_vocab_size", config.has_decoder)]
    for name, used in needed:
        if used and getattr(config, name) is None:
            raise ConfigError(f"{name} is missing: the architecture {config.architecture!r} needs it.")
    if config.attention_head_dim is None and config.embed_dim % config.num_heads:
        raise ConfigError(
            f"embed_dim is {config.embed_dim}, which {config.num_heads} heads (num_heads) do not divide evenly; "
            f"{config.embed_dim // config.num_heads * config.num_heads or config.num_heads} would be right."
        )
    if config.num_heads % config.key_value_heads:
        raise ConfigError(
            f"num_key_value_heads is {config.num_key_value_heads}, which does not divide the {config.num_heads} heads "
            "(num_heads) evenly; a divisor of it would be right."
        )
    whole = (config.key_value_heads, config.attention_dim) == (config.num_heads, config.embed_dim)
    if config.projection == "shared-per-head" and not whole:
        raise ConfigError(
            "projection is shared-per-head, which cuts embed_dim into heads: num_key_value_heads and "
            "attention_head_dim should be absent."
        )
    if config.positions == "rotary" and (config.rotated_dim % 2 or config.rotated_dim > config.head_dim):
        name = "head_dim" if config.rotary_dim is None else "rotary_dim"
        raise ConfigError(
            f"{name} is {config.rotated_dim}, but rotary positions turn pairs of a head's {config.head_dim} features: "
            f"an even number up to that would be right."
        )
    if config.position_count == "visible" and not config.position_offset:
        raise ConfigError(
            "position_count is 'visible', which puts padding in front of the first position, but position_offset is 0: "
            "1 or more would be right."
        )
    if not config.rotary_low_frequency < config.rotary_high_frequency:
        raise ConfigError(
            f"rotary_low_frequency is {config.rotary_low_frequency}; it should be less than rotary_high_frequency, "
            f"{config.rotary_high_frequency}."
        )
    # An encoder has half its buckets for each direction; half of those of one direction are for one distance each.
    least = 4 if config.has_encoder else 2
    exact = max(config.relative_buckets, least) // (2 if config.has_decoder else 4)
    enough = config.relative_buckets >= least and config.relative_max_distance > exact
    if config.positions == "relative" and not enough:
        raise ConfigError(
            f"relative_buckets is {config.relative_buckets} and relative_max_distance {config.relative_max_distance}; "
            f"there should be {least} buckets at least, and the distance greater than {exact}."
        )
    both = config.architecture == "encoder-decoder" and config.source_vocab_size == config.target_vocab_size
    if config.shared_embedding and not both:
        raise ConfigError(
            f"shared_embedding is true, but source_vocab_size is {config.source_vocab_size} and target_vocab_size "
            f"{config.target_vocab_size}; an encoder-decoder with as many tokens on both sides would be right."
        )
    for name, given in (("num_token_types", config.num_token_types), ("head", config.head != "logits")):
        if given and config.architecture != "encoder":
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, which only a lone encoder has a place for, and architecture is "
                f"{config.architecture!r}."
            )
    if config.norm == "layer-unbiased" and config.embed_dim == 1:
        raise ConfigError("embed_dim is 1, but the unbiased deviation divides by embed_dim − 1: 2 would be right.")
    if config.positions == "sinusoidal" and config.embed_dim % 2:
        raise ConfigError(
            f"embed_dim is {config.embed_dim}, but sinusoidal positions pair each sine with a cosine: "
            f"{config.embed_dim + 1} would be right."
        )
    vocabularies = [config.stack_vocab_size(config.input_stack(name)) for name in config.input_names]
    for name, sizes in (("pad_id", vocabularies), ("bos_id", vocabularies[-1:]), ("eos_id", vocabularies[-1:])):
        token = getattr(config, name)
        if token is not None and token >= min(sizes):
            raise ConfigError(f"{name} is {token}, outside the vocabulary of {min(sizes)} tokens.")


def _checked(name: str, value: Any) -> Any:
    """`value` as the plain Python type of the field `name`."""
    kind = _FIELD_KINDS[name]
    if choices := get_args(kind) if getattr(kind, "__origin__", None) is Literal else ():
        if not isinstance(value, str) or value not in choices:
            raise ConfigError(f"{name} is {shown(value)}; it should be one of {', '.join(choices)}.")
        return str(value)
    if get_origin(kind) is tuple:
        return _checked_places(name, value, get_args(get_args(kind)[0]))
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {shown(value)}; it should be true or false.")
        return value
    if kind not in (int, float) and value is None:
        return None
    if float in (kind, *get_args(kind)):
        return _checked_float(name, value)
    try:
        if isinstance(value, bool):
            raise TypeError
        value = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {shown(value)}; it should be a whole number.") from None
    least = 0 if name.endswith("_id") or name in (*_STACK_LAYERS, "position_offset", "num_token_types") else 1
    most = 10_000 if name in _STACK_LAYERS else 2**31 - 1
    if not least <= value <= most:
        raise ConfigError(f"{name} is {shown(value)}; it should be between {least} and {most}.")
    return value


def _checked_places(name: str, value: Any, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Some of `choices`, in their order, so that two configurations with the same ones are equal."""
    given = list(value) if isinstance(value, list | tuple) else [None]
    for place in given:
        if place not in choices:
            raise ConfigError(f"{name} is {shown(value)}; it should list some of {', '.join(choices)}.")
    return tuple(place for place in choices if place in given)


_STACK_LAYERS = ("num_encoder_layers", "num_decoder_layers")

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "norm_eps": (lambda x: 0 <= x < math.inf, "a finite number ≥ 0"),
    "norm_momentum": (lambda x: 0 <= x <= 1, "between 0 and 1"),
    "mask_value": (lambda x: x <= 0, "0 or less (−inf allowed)"),
    "dropout": (lambda x: 0 <= x < 1, "at least 0 and less than 1"),
} | dict.fromkeys(
    (
        "attention_multiplier",
        "attention_softcap",
        "final_softcap",
        "rope_theta",
        "rotary_factor",
        "rotary_low_frequency",
        "rotary_high_frequency",
    ),
    (lambda x: 0 < x < math.inf, "a finite number > 0"),
)


def _checked_float(name: str, value: Any) -> float:
    holds, says = _RANGES[name]
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} is {shown(value)}; it should be a number, {says}.") from None
    if not holds(number):
        raise ConfigError(f"{name} is {number}; it should be {says}.")
    return number


_FIELD_KINDS = get_type_hints(TransformerConfig)
