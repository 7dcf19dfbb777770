"""Names for the shapes of tensors. In one call, equal names mean equal sizes; an axis with `#` may have size 1."""

from __future__ import annotations

from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

Hidden = Float[Tensor, "batch length embed_dim"]
Memory = Float[Tensor, "batch memory embed_dim"]
Vectors = Float[Tensor, "*batch embed_dim"]
Features = Float[Tensor, "*batch features"]
Weight = Float[Tensor, " embed_dim"]

Queries = Float[Tensor, "batch heads queries head_dim"]
Keys = Float[Tensor, "batch key_heads keys head_dim"]
Values = Float[Tensor, "batch key_heads keys value_dim"]
Heads = Float[Tensor, "batch any_heads length head_dim"]
Scores = Float[Tensor, "batch heads queries keys"]
MaskArray = Bool[Tensor, "#batch 1 #queries keys"]
Bias = Float[Tensor, "#batch heads #queries keys"]
Sinks = Float[Tensor, " heads"]
PaddingMask = Bool[Tensor, "batch 1 1 keys"]
CausalMask = Bool[Tensor, "#batch 1 queries keys"]
DistanceBias = Float[Tensor, "#batch heads queries keys"]
Temperature = Float[Tensor, "#batch 1 queries 1"]

QueryHeads = Float[Tensor, "batch heads length head_dim"]
RecurrentValues = Float[Tensor, "batch heads length value_dim"]
State = Float[Tensor, "batch heads head_dim value_dim"]
PerHead = Float[Tensor, "batch heads length"]
Rates = Float[Tensor, "batch length heads"]
Channels = Float[Tensor, "batch length features"]
EarlierChannels = Float[Tensor, "batch earlier features"]
ByExpert = Float[Tensor, "*batch experts"]
PooledState = Float[Tensor, "batch embed_dim"]

TokenIds = Int[Tensor, "batch length"]
SourceIds = Int[Tensor, "batch keys"]
IsToken = Bool[Tensor, "batch keys"]
Positions = Int[Tensor, "#batch queries"]
Lengths = Int[Tensor, " batch"]
QueryIds = Int[Tensor, "batch queries"]
IsQuery = Bool[Tensor, "batch queries"]
GeneratedIds = Int[Tensor, "batch total_length"]
PerBeam = Int[Tensor, "batch beams"]
NextIds = Int[Tensor, " batch"]
NextLogits = Float[Tensor, "batch vocab"]
Integers = Int[Tensor, "*batch"]
Pixels = Float[Tensor, "batch channels height width"]
Frames = Float[Tensor, "batch mel_bins frames"]
Source = SourceIds | Pixels | Frames
"""The input of a stack."""

Input = Shaped[Tensor, "batch ..."]
"""An input of a model; several inputs may have different lengths."""

Frequencies = Float64[Tensor, " pairs"]
RotaryTables = tuple[Float[Tensor, "#batch 1 length pairs"], Float[Tensor, "#batch 1 length pairs"]]
"""The cosine and sine of every angle by which queries and keys are rotated."""
