"""A port of the reference as somebody else would write it: one class, float32, everything in sight. It can make every
catalogued mistake, each in the line where a tired person makes it, and it can be right in many other styles.

Nothing here knows how the checker imitates a mistake: what is said in both places was thought of twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from transparity.config import TransformerConfig

Arrays = dict[str, np.ndarray]
Build = Callable[[TransformerConfig, Arrays], Callable[..., Any]]


@dataclass(frozen=True)
class PlainFault:
    """One simulated fault: its id in the catalogue, the form it takes, and where in the model (empty: everywhere)."""

    id: str
    variant: str
    scope: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """The one name that is right; uncatalogued faults have a name that no catalogue has."""
        return (self.id,)

    def __str__(self) -> str:
        return f"{self.id} ({self.variant}{' in ' + self.scope if self.scope else ''})"


@dataclass(frozen=True)
class Style:
    """A way to write a correct port, and a seed for what may be chosen freely in it."""

    kind: str = "plain"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}"


PLAIN = Style()


def build_port(
    fault: PlainFault | Iterable[PlainFault] | None = None,
    style: Style = PLAIN,
    *,
    taps: bool = True,
    dtype: str = "float32",
) -> Build:
    """`build(config, parameters)` of a port that makes `fault` (or several), in `style`."""
    faults = (fault,) if isinstance(fault, PlainFault) else tuple(fault or ())

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        return PlainPort(config, parameters, faults, style, taps, dtype)

    return build


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    """`x` rounded to 8 bits of precision, held as it was."""
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(x.dtype)


def as_tf32(x: np.ndarray) -> np.ndarray:
    """`x` rounded to 11 bits of precision, as tensor cores read their factors."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & ~np.uint32((1 << 13) - 1)).view(np.float32).astype(x.dtype)


def as_float16(x: np.ndarray) -> np.ndarray:
    """`x` rounded to float16, held as it was."""
    return x.astype(np.float16).astype(x.dtype)


STORED_AS = {"bfloat16 weights": as_bfloat16, "float16 weights": as_float16, "bfloat16 arithmetic": as_bfloat16}

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick gelu": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "none": lambda x: x,
}


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.ravel()], x.dtype).reshape(x.shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(x / 2)) / 2


class PlainPort:
    """`forward` of the port."""

    def __init__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        faults: tuple[PlainFault, ...],
        style: Style,
        taps: bool,
        dtype: str,
    ) -> None:
        self.c, self.faults, self.style, self.taps = config, faults, style.kind, taps
        self.dtype = np.dtype("float64" if style.kind == "float64" else dtype)
        self.choose = np.random.default_rng(style.seed)
        self.seed = style.seed
        self.p = {name: np.asarray(value).astype(self.dtype) for name, value in parameters.items()}
        if store := STORED_AS.get(self.fault("low-precision")):
            self.p = {name: store(value) for name, value in self.p.items()}
        if style.kind == "bfloat16":
            self.p = {name: as_bfloat16(value) for name, value in self.p.items()}
        self.head_order = self.choose.permutation(config.num_heads)
        self.hidden_order = self.choose.permutation(config.feed_forward_dim)
        self.noise = np.random.default_rng(1)  # goes on from run to run, as a generator left on does
        self.heard: dict[str, Any] = {}

    def __call__(self, source: Any = None, target: Any = None, tokens: Any = None) -> Any:
        inputs = {"source": source, "target": target, "tokens": tokens}
        given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
        if self.style in ("rows alone", "trimmed"):
            return self.by_rows(given)
        heard = self.forward(**given)
        return heard if self.taps else heard["logits"]

    def forward(self, **given: np.ndarray) -> dict[str, Any]:
        self.heard = {}
        if self.c.architecture == "encoder-decoder":
            memory = self.stack("encoder", given["source"])
            x = self.stack("decoder", given["target"], memory, given["source"])
        else:
            x = self.stack(self.c.architecture, given["tokens"])
        logits = self.dense("head", x)
        if kind := self.fault("logit-shift"):
            largest = logits.max(-1, keepdims=True)
            shift = {
                "log-probabilities": largest + np.log(np.exp(logits - largest).sum(-1, keepdims=True)),
                "minus the largest": largest,
                "minus the mean": logits.mean(-1, keepdims=True),
            }
            logits = logits - shift[kind]
        if self.fault("probabilities"):
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            logits = weights / weights.sum(-1, keepdims=True)
        self.tap("logits", logits)
        return {name: value for name, value in self.heard.items() if self.shows(name)}

    def by_rows(self, given: Arrays) -> Any:
        """Every row by itself; `trimmed`: without the padding at the end of its source, which changes the shape of
        what reads the source, so that no such tap is returned."""
        rows = []
        for row in range(len(next(iter(given.values())))):
            tokens = {name: value[row : row + 1] for name, value in given.items()}
            if self.style == "trimmed" and self.hides and "source" in tokens:
                seen = np.flatnonzero(tokens["source"][0] != self.c.pad_id)
                tokens["source"] = tokens["source"][:, : seen[-1] + 1] if len(seen) else tokens["source"]
            rows.append(self.forward(**tokens))
        of_source = ("encoder.", "memory_norm", "cross_attention.key", "cross_attention.value", "scores", "weights")
        names = [name for name in rows[0] if self.style == "rows alone" or not any(part in name for part in of_source)]
        heard = {name: np.concatenate([row[name] for row in rows]) for name in names}
        return heard if self.taps else heard["logits"]

    def stack(self, name: str, tokens: np.ndarray, memory: Any = None, source: Any = None) -> np.ndarray:
        c = self.c
        x = self.tap(f"{name}.embedding", self.drop(self.embed(name, tokens), "embedding"))
        own = self.visible(name, tokens, tokens, causal=name == "decoder")
        across = own if source is None else self.visible("cross", tokens, source, causal=False)
        for i in range(c.num_encoder_layers if name == "encoder" else c.num_decoder_layers):
            at = f"{name}.layers.{i}"
            keep = own
            if self.fault("causal-missing", at) and name == "decoder":
                keep = self.visible(name, tokens, tokens, causal=False)
            attend = functools.partial(self.attend, f"{at}.self_attention", memory=None, keep=keep)
            began = x
            x = self.sublayer(at, "self_attention", x, began, attend)
            if memory is not None:
                seen = memory
                if c.memory_norm and self.fault("norm-missing", at) != "memory":
                    seen = self.tap(f"{at}.memory_norm", self.norm(f"{at}.memory_norm", memory))
                attend = functools.partial(self.attend, f"{at}.cross_attention", memory=seen, keep=across)
                x = self.sublayer(at, "cross_attention", x, began, attend)
            x = self.sublayer(at, "feed_forward", x, began, functools.partial(self.feed, f"{at}.feed_forward"))
            x = self.tap(f"{at}.output", x)
        if c.final_norm and self.fault("norm-missing", name) != "final":
            x = self.norm(f"{name}.final_norm", x)
        return self.tap(f"{name}.output", x)

    def embed(self, name: str, tokens: np.ndarray) -> np.ndarray:
        c, (_, length) = self.c, tokens.shape
        table = self.p[f"{name}.token_embedding.weight"]
        if self.fault("padding-row", name) and c.pad_id is not None:
            table = table.copy()
            table[c.pad_id] = 0
        root = math.sqrt(c.embed_dim)
        factor = root if c.embedding_scale == "embed_dim" else 1.0
        factor = {"missing": 1.0, "twice": root**2, "inverted": 1 / root, "": factor}.get(
            self.fault("embedding-scale", name), root
        )
        offset = int(self.fault("position-offset", name) or 0)
        if c.positions == "learned":
            rows = np.minimum(np.arange(length) + offset, c.max_length - 1)  # negative ones count from the end
            places = self.p[f"{name}.position_embedding.weight"][rows]
        else:
            places = self.waves(name, np.arange(length) + offset)
        if self.fault("uncatalogued", name) == "positions twice in the decoder" and name == "decoder":
            places = 2 * places
        return self.cut(table[tokens] * self.dtype.type(factor) + places.astype(self.dtype))

    def waves(self, name: str, positions: np.ndarray) -> np.ndarray:
        d, frequency = self.c.embed_dim, self.fault("position-frequency", name)
        base = float(frequency.removeprefix("base ")) if frequency.startswith("base") else 1e4
        stretch = {"exponent doubled": 2.0, "exponent halved": 0.5}.get(frequency, 1.0)
        table = np.zeros((len(positions), d))
        for pair in range(d // 2):
            angle = positions * base ** (-2 * pair / d * stretch)
            table[:, 2 * pair], table[:, 2 * pair + 1] = np.sin(angle), np.cos(angle)
        layout = self.fault("position-layout", name)
        if layout == "concatenated":
            table = np.concatenate([table[:, 0::2], table[:, 1::2]], 1)
        elif layout == "cosine first":
            table = table.reshape(len(positions), -1, 2)[:, :, ::-1].reshape(len(positions), d)
        return table

    def sublayer(
        self, at: str, kind: str, x: np.ndarray, began: np.ndarray, f: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """The residual around `f`; `began` is what came into the layer."""
        name = f"{at}.{kind}_norm"
        before = (self.c.norm_position == "pre") != bool(self.fault("norm-placement", at))
        missing = self.fault("norm-missing", at) == kind

        def normed(y: np.ndarray) -> np.ndarray:
            return y if missing else self.tap(name, self.norm(name, y))

        inside = normed(x) if before else x
        out = self.drop(f(inside), "sublayer")
        wrong = self.fault("residual-source", f"{at}.{kind}")
        kept = {"the normalised": inside, "the layer's input": began, "nothing": 0 * x}.get(wrong, x)
        if self.fault("uncatalogued", at) == "mean over positions added" and kind == "self_attention":
            kept = kept + x.mean(1, keepdims=True) * self.dtype.type(0.3)
        total = self.cut(kept + out)
        return total if before else normed(total)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        c = self.c
        source = name
        if pair := self.fault("norm-swapped", name):
            one, other = (f".{part}_norm" for part in pair.split(" with "))
            swapped = name.replace(one, other) if name.endswith(one) else name.replace(other, one)
            source = swapped if f"{swapped}.weight" in self.p else name
        into, _, taken = self.fault("norm-duplicated", name).partition(" from ")
        if into and name.endswith(f".{into}_norm"):
            source = name.replace(f".{into}_norm", f".{taken}_norm")
        source = self.shared(source)
        gain, bias = self.p[f"{source}.weight"], self.p.get(f"{source}.bias", 0)
        eps = float(self.fault("norm-eps", name) or c.norm_eps)
        kind = self.fault("norm-kind", name)
        x = x.astype(self.dtype) * self.dtype.type(self.fault("norm-input-scale", name) or 1)
        if c.norm == "batch" and kind != "layer":
            mean, spread = self.p[f"{source}.running_mean"], self.p[f"{source}.running_var"]
            if kind == "batch statistics":
                mean, spread = x.mean((0, 1)), x.var((0, 1))
            away = x - mean
            if self.fault("norm-eps-placement", name):
                return self.cut(away / (np.sqrt(spread) + self.dtype.type(eps)) * gain + bias)
            return self.cut(away / np.sqrt(spread + self.dtype.type(eps)) * gain + bias)
        axes = (0, 1) if kind == "batch statistics" else -1
        away = x if kind.startswith("rms") else x - self.mean(x, axes)
        spread = self.mean(away * away, axes)
        count = x.size // spread.size
        unbiased = (c.norm == "layer-unbiased") != bool(self.fault("norm-variance", name))
        if unbiased and kind != "rms without bias" and count > 1:
            spread = spread * self.dtype.type(count / (count - 1))
        outside = (c.norm == "layer-unbiased") != bool(self.fault("norm-eps-placement", name))
        small = self.dtype.type(eps)
        result = away / (np.sqrt(spread) + small if outside else np.sqrt(spread + small)) * gain
        return self.cut(result if kind == "rms without bias" else result + bias)

    def mean(self, x: np.ndarray, axes: Any) -> np.ndarray:
        if self.style == "permuted sums":
            x = x[..., np.random.default_rng(self.seed).permutation(x.shape[-1])]
        return x.mean(axes, keepdims=True)

    def feed(self, at: str, x: np.ndarray) -> np.ndarray:
        act = ACTIVATIONS[self.fault("activation", at)]
        hidden = self.tap(f"{at}.hidden", self.cut(act(self.dense(f"{at}.up", x))))
        out = self.dense(f"{at}.down", hidden)
        if self.fault("uncatalogued", at) == "feed-forward clipped":
            out = np.clip(out, -1, 1)
        return self.tap(f"{at}.output", out)

    def attend(self, at: str, x: np.ndarray, memory: np.ndarray | None, keep: np.ndarray) -> np.ndarray:
        """`x` looks at `memory`; None: at itself."""
        seen = x if memory is None else memory
        query, key, value = (
            self.heads(f"{at}.{role}", y) for role, y in (("query", x), ("key", seen), ("value", seen))
        )
        if self.style == "heads permuted":
            query, key, value = query[:, self.head_order], key[:, self.head_order], value[:, self.head_order]
        if self.fault("uncatalogued", at) == "values a position late":
            value = np.roll(value, 1, 2)
        query, key, value = (
            self.tap(f"{at}.{role}", y) for role, y in (("query", query), ("key", key), ("value", value))
        )
        scale = self.scale(at)
        if self.style == "online softmax":
            merged = self.merge(at, self.online(query, key, value, keep, scale))
        else:
            by = 1.0 if self.style == "scale in the query" else scale
            scores = self.cut(self.product(query, key.swapaxes(2, 3)) * self.dtype.type(by))
            weights = self.weights(at, self.tap(f"{at}.scores", scores), keep, scale)
            merged = self.merge(at, self.gather(weights, value))
        out = self.dense(f"{at}.output", self.tap(f"{at}.context", merged))
        return self.tap(f"{at}.output", out)

    def heads(self, name: str, x: np.ndarray) -> np.ndarray:
        """Queries, keys or values of every head."""
        if self.c.projection == "shared-per-head":
            return self.dense(name, self.split(x, name))
        if self.style == "fused":
            at, _, role = name.rpartition(".")
            order = np.random.default_rng(self.seed).permutation(["query", "key", "value"]).tolist()
            packed = np.concatenate([self.p[f"{at}.{each}.weight"] for each in order])
            begin = order.index(role) * self.c.embed_dim
            y = (x.reshape(-1, x.shape[-1]) @ packed.T).reshape(*x.shape[:2], -1)[..., begin : begin + x.shape[-1]]
            return self.split(y + self.p[f"{name}.bias"] if f"{name}.bias" in self.p else y, name)
        return self.split(self.dense(name, x), name)

    def split(self, x: np.ndarray, name: str) -> np.ndarray:
        (b, t, _), h, e = x.shape, self.c.num_heads, self.c.head_dim
        if self.fault("head-split", name) == "split":
            return x.reshape(b, h, t, e)
        if self.fault("head-order", name) in ("split", "split and merge"):
            return x.reshape(b, t, e, h).transpose(0, 3, 1, 2)
        return np.stack([x[:, :, i * e : (i + 1) * e] for i in range(h)], 1)

    def merge(self, at: str, x: np.ndarray) -> np.ndarray:
        b, h, t, e = x.shape
        if self.style == "heads permuted" and self.seed % 2:  # else the output's columns are permuted
            x = x[:, np.argsort(self.head_order)]
        if self.fault("uncatalogued", at) == "a head silent":
            x = x.copy()
            x[:, -1] = 0
        if self.fault("head-split", at) == "merge":
            return x.reshape(b, t, h * e)
        if self.fault("head-order", at) in ("merge", "split and merge"):
            return x.transpose(0, 2, 3, 1).reshape(b, t, h * e)
        return np.concatenate([x[:, i] for i in range(h)], -1)

    def scale(self, at: str = "") -> float:
        wanted = self.c.head_dim if self.c.attention_scale == "head_dim" else self.c.embed_dim
        other = self.c.head_dim + self.c.embed_dim - wanted
        return {
            "": wanted**-0.5,
            "the other root": other**-0.5,
            "none": 1.0,
            "twice": 1 / wanted,
            "one feature more": (wanted + 1) ** -0.5,
            "of the heads": self.c.num_heads**-0.5,
        }[self.fault("attention-scale", at)]

    @property
    def hides(self) -> bool:
        """True if masked scores have zero weight."""
        return self.c.mask_value <= -1e6

    def visible(self, kind: str, queries: np.ndarray, keys: np.ndarray, *, causal: bool) -> np.ndarray:
        """Keys that each query sees, (batch, 1, queries, keys). `kind` is a stack, or `cross`."""
        n, m, pad = queries.shape[1], keys.shape[1], self.c.pad_id
        inverted = self.fault("mask-polarity")
        late = {"hides itself": -1, "shows the next": 1}.get(self.fault("causal-diagonal"), 0)
        past = np.array([[key <= query + late for key in range(m)] for query in range(n)])[None, None]
        past = past if causal else np.ones_like(past)
        if inverted == "causal" and causal:
            past = ~past
        shown = np.ones((len(keys), 1, 1, m), bool)
        called = {"encoder": "source", "decoder": "target"}.get(kind, kind)
        pads = pad is not None and (kind != "decoder" or self.c.target_mask == "causal-and-padding")
        if pads and self.fault("padding-ignored") not in (called, "everywhere"):
            shown = (keys != pad)[:, None, None, :]
            if self.fault("padding-axis") == called:
                shown = (queries != pad)[:, None, :, None]
            if inverted == "padding":
                shown = ~shown
        keep = np.broadcast_to(past & shown, (len(keys), 1, n, m))
        return ~keep if inverted == "everything" else keep

    def weights(self, at: str, scores: np.ndarray, keep: np.ndarray, scale: float) -> np.ndarray:
        value = float(self.fault("mask-value", at) or self.c.mask_value)
        early = (self.c.mask_order == "before-scale") != bool(self.fault("mask-order", at))
        value *= scale if early else 1.0
        if self.style == "another infinity":
            value = self.infinity(value)
        hidden = max(value, float(np.finfo(self.dtype).min) / 4)
        if self.fault("uncatalogued", at) == "a temperature by head":
            scores = scores * np.linspace(0.8, 1.3, self.c.num_heads).astype(self.dtype)[:, None, None]
        masked = np.where(keep, scores, self.dtype.type(hidden))
        axis = {"": -1, "queries": -2, "heads": 1}[self.fault("softmax-axis", at)]
        top = np.exp(masked - masked.max(axis, keepdims=True))
        weights = top / top.sum(axis, keepdims=True)
        convention = ("zeros", "mean of the past")[self.seed % 2] if self.style == "another convention" else ""
        if blind := self.fault("mask-wholly-hidden-row", at) or convention:
            past = np.tril(np.ones(keep.shape[2:], bool)) if "decoder" in at and "self" in at else np.ones_like(keep)
            past = np.broadcast_to(past, keep.shape)
            instead = {
                "nan": np.nan * past,
                "zeros": 0.0 * past,
                "mean of the past": past / past.sum(-1, keepdims=True),
            }
            weights = np.where(keep.any(-1, keepdims=True), weights, instead[blind].astype(self.dtype))
        return self.tap(f"{at}.weights", self.cut(self.drop(weights, "weights")))

    def infinity(self, value: float) -> float:
        """Another number that hides as well as `value` does, or as badly."""
        if self.hides:
            return (-np.inf, -1e30, -1e12, -2e9)[self.seed % 4]
        return (0.0, -1e-30, value / 2, 2 * value)[self.seed % 4] if abs(value) < 1e-9 else value

    def gather(self, weights: np.ndarray, value: np.ndarray) -> np.ndarray:
        if self.style == "einsum":
            return np.einsum("bhqk,bhkd->bhqd", weights, value, optimize=bool(self.seed % 2))
        return self.cut(self.product(weights, value))

    def online(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, keep: np.ndarray, scale: float
    ) -> np.ndarray:
        """softmax(query · keyᵀ) · value, some keys at a time, never the whole matrix (Dao et al. 2022)."""
        hidden = self.c.mask_value * (scale if self.c.mask_order == "before-scale" else 1.0)
        hidden = max(hidden, float(np.finfo(self.dtype).min) / 4)
        some = 1 + self.seed % 4
        top = np.full((*query.shape[:3], 1), -np.inf, self.dtype)
        total, out = np.zeros_like(top), np.zeros_like(query)
        for k in range(0, key.shape[2], some):
            scores = query @ key[:, :, k : k + some].swapaxes(2, 3) * self.dtype.type(scale)
            scores = np.where(keep[..., k : k + some], scores, self.dtype.type(hidden))
            higher = np.maximum(top, scores.max(-1, keepdims=True))
            shrink, share = np.exp(top - higher), np.exp(scores - higher)
            total = total * shrink + share.sum(-1, keepdims=True)
            out = out * shrink + share @ value[:, :, k : k + some]
            top = higher
        return out / total

    def shared(self, name: str) -> str:
        """The parameters that are used for those of `name`: those of another layer, if layers share them."""
        stack, inside, rest = name.partition(".layers.")
        if not inside or not (which := self.fault("layer-shared", name)):
            return name
        layer = 0 if which == "first" else self.c.stack_num_layers(stack) - 1
        return f"{stack}.layers.{layer}.{rest.partition('.')[2]}"

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        """x Wᵀ + b, of the parameters `name`."""
        at, _, role = name.rpartition(".")
        one, _, other = self.fault("weight-swapped", at).partition(" with ")
        instead = {one: other, other: one}.get(role, role)
        into, _, taken = self.fault("weight-duplicated", at).partition(" from ")
        instead = taken if role == into else instead
        source = self.shared(f"{at}.{instead}" if instead != role else name)
        if self.p[f"{source}.weight"].shape != self.p[f"{name}.weight"].shape:
            source = name
        w, b = self.p[f"{source}.weight"], self.p.get(f"{source}.bias")
        if self.fault("weight-transpose", at) == role and w.shape[0] == w.shape[1]:
            w = w.T
        if self.fault("bias-dropped", at) == role:
            b = None
        if role == "head" and self.fault("head-tied"):
            w = self.p[f"{'decoder' if self.c.has_decoder else 'encoder'}.token_embedding.weight"]
        w, b = self.restyled(role, w, b)
        y = self.product(x, w.T)
        return self.cut(y if b is None else y + b)

    def restyled(self, role: str, w: np.ndarray, b: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Weights that a correct port may have changed when it loaded them."""
        if self.style == "scale in the query" and role == "query":
            scale = self.dtype.type(self.scale())
            return w * scale, None if b is None else b * scale
        if self.style == "heads permuted" and role == "output" and not self.seed % 2:
            columns = np.arange(self.c.embed_dim).reshape(self.c.num_heads, -1)[self.head_order].ravel()
            return w[:, columns], b
        if self.style == "hidden permuted" and role == "up":
            return w[self.hidden_order], None if b is None else b[self.hidden_order]
        if self.style == "hidden permuted" and role == "down":
            return w[:, self.hidden_order], b
        if self.style == "no key bias" and role == "key" and self.hides:
            return w, None
        return w, b

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a · b, in the order and the precision of the style."""
        if self.fault("low-precision") == "tf32 products":
            a, b = as_tf32(a), as_tf32(b)
        if self.style == "einsum":
            return np.einsum("...ij,...jk->...ik", a, b)
        n = a.shape[-1]
        if self.style == "permuted sums":
            order = np.random.default_rng(self.seed).permutation(n)
            return a[..., order] @ b[..., order, :]
        if self.style == "chunked sums":
            some = 2 + self.seed % 5
            parts = [a[..., i : i + some] @ b[..., i : i + some, :] for i in range(0, n, some)]
            return np.sum(parts[::-1], 0, dtype=self.dtype)
        return a @ b

    def fault(self, id: str, place: str = "") -> str:
        """The form that the mistake `id` takes at `place`; empty if it is not made there."""
        return next((fault.variant for fault in self.faults if fault.id == id and place.startswith(fault.scope)), "")

    def cut(self, x: np.ndarray) -> np.ndarray:
        low = self.fault("low-precision") == "bfloat16 arithmetic" or (self.style == "bfloat16" and self.seed % 2)
        return as_bfloat16(x) if low else x

    def drop(self, x: np.ndarray, where: str) -> np.ndarray:
        """Apply dropout, as in training but not in evaluation; PyTorch drops a tenth by default."""
        if self.fault("dropout-active") != where:
            return x
        share = self.c.dropout or 0.1
        return x * (self.noise.random(x.shape) >= share).astype(self.dtype) / self.dtype.type(1 - share)

    def tap(self, name: str, value: np.ndarray) -> np.ndarray:
        self.heard[name] = value.astype(np.float32) if self.style == "float64" else value
        return value

    def shows(self, name: str) -> bool:
        """Taps that a style has to offer."""
        if name == "logits":
            return True
        if self.style == "no key bias":
            return not name.endswith(("key", "scores"))
        if self.style == "some taps":
            return np.random.default_rng([self.seed, *name.encode()]).random() < 0.5
        return self.style != "logits alone"
