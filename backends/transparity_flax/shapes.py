"""Names for the shapes of arrays. In one call, equal names mean equal sizes; an axis with `#` may have size 1."""

from __future__ import annotations

import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float64, Int, Shaped

Hidden = Float[Array, "batch length embed_dim"]
Memory = Float[Array, "batch memory embed_dim"]
Vectors = Float[Array, "*batch embed_dim"]
Features = Float[Array, "*batch features"]
Weight = Float[Array, " embed_dim"]

Queries = Float[Array, "batch heads queries head_dim"]
Keys = Float[Array, "batch key_heads keys head_dim"]
Values = Float[Array, "batch key_heads keys value_dim"]
Heads = Float[Array, "batch any_heads length head_dim"]
Scores = Float[Array, "batch heads queries keys"]
MaskArray = Bool[Array, "#batch 1 #queries keys"]
Bias = Float[Array, "#batch heads #queries keys"]
Sinks = Float[Array, " heads"]
PaddingMask = Bool[Array, "batch 1 1 keys"]
CausalMask = Bool[Array, "#batch 1 queries keys"]
DistanceBias = Float[Array, "#batch heads queries keys"]
Temperature = Float[Array, "#batch 1 queries 1"]

QueryHeads = Float[Array, "batch heads length head_dim"]
RecurrentValues = Float[Array, "batch heads length value_dim"]
State = Float[Array, "batch heads head_dim value_dim"]
PerHead = Float[Array, "batch heads length"]
Rates = Float[Array, "batch length heads"]
Channels = Float[Array, "batch length features"]
EarlierChannels = Float[Array, "batch earlier features"]
ByExpert = Float[Array, "*batch experts"]
PooledState = Float[Array, "batch embed_dim"]

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
NextLogits = Float[Array, "batch vocab"]
Integers = Int[Array, "*batch"]
Pixels = Float[Array, "batch channels height width"]
Frames = Float[Array, "batch mel_bins frames"]
Source = SourceIds | Pixels | Frames
"""The input of a stack."""

Input = Shaped[Array, "batch ..."]
"""An input of a model; several inputs may have different lengths."""

Frequencies = Float64[np.ndarray, " pairs"]
RotaryTables = tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]]
"""The cosine and sine of every angle by which queries and keys are rotated."""
