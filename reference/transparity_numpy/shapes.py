"""Names for the shapes of arrays. In one call, equal names mean equal sizes; an axis with `#` may have size 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Float, Float64, Inexact, Int, Shaped
from numpy import ndarray as Array

Hidden = Inexact[Array, "batch length embed_dim"]
Memory = Inexact[Array, "batch memory embed_dim"]
Vectors = Inexact[Array, "*batch embed_dim"]
Features = Inexact[Array, "*batch features"]
Weight = Inexact[Array, " embed_dim"]

Queries = Inexact[Array, "batch heads queries head_dim"]
Keys = Inexact[Array, "batch key_heads keys head_dim"]
Values = Inexact[Array, "batch key_heads keys value_dim"]
Heads = Inexact[Array, "batch any_heads length head_dim"]
Scores = Inexact[Array, "batch heads queries keys"]
Mask = Bool[Array, "#batch 1 #queries keys"]
Bias = Inexact[Array, "#batch heads #queries keys"]
Sinks = Inexact[Array, " heads"]
PaddingMask = Bool[Array, "batch 1 1 keys"]
CausalMask = Bool[Array, "#batch 1 queries keys"]
DistanceBias = Inexact[Array, "#batch heads queries keys"]
Temperature = Inexact[Array, "#batch 1 queries 1"]

QueryHeads = Inexact[Array, "batch heads length head_dim"]
RecurrentValues = Inexact[Array, "batch heads length value_dim"]
State = Inexact[Array, "batch heads head_dim value_dim"]
PerHead = Inexact[Array, "batch heads length"]
Rates = Inexact[Array, "batch length heads"]
Channels = Inexact[Array, "batch length features"]
EarlierChannels = Inexact[Array, "batch earlier features"]
ByExpert = Inexact[Array, "*batch experts"]
PooledState = Inexact[Array, "batch embed_dim"]

TokenIds = Int[Array, "batch length"]
SourceIds = Int[Array, "batch keys"]
IsToken = Bool[Array, "batch keys"]
Positions = Int[Array, "#batch queries"]
Lengths = Int[Array, " batch"]
QueryIds = Int[Array, "batch queries"]
IsQuery = Bool[Array, "batch queries"]
GeneratedIds = Int[Array, "batch total_length"]
PerBeam = Int[Array, "batch beams"]
NextIds = Int[Array, " batch"]
NextLogits = Inexact[Array, "batch vocab"]
Integers = Int[Array, "*batch"]
Pixels = Inexact[Array, "batch channels height width"]
Frames = Inexact[Array, "batch mel_bins frames"]
Source = SourceIds | Pixels | Frames
"""The input of a stack."""

Input = Shaped[Array, "batch ..."]
"""An input of a model; several inputs may have different lengths."""

Parameters = Mapping[str, Any]
"""Arrays by flat name, or the nested parameters of a part of the model."""

Frequencies = Float64[Array, " pairs"]
RotaryTables = tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]]
"""The cosine and sine of every angle by which queries and keys are rotated."""
