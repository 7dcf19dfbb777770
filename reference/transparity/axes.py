"""The names of the dimensions in the project's shape annotations.

A bare `1` is an axis of size 1 for broadcasting; the axis `#batch` may also have size 1. `*batch` stands for any
leading axes, and `...` for any axes.
"""

LEGEND = {
    "batch": ("B", "sequences"),
    "queries": ("T", "positions of queries"),
    "keys": ("S", "positions of keys"),
    "length": ("T", "positions of queries or keys"),
    "new_tokens": ("T", "positions to generate"),
    "total_length": ("T", "positions of the prompt and of the generated tokens"),
    "memory": ("S", "positions of the source that a decoder attends to"),
    "beams": ("B", "continuations of a sequence"),
    "rows": ("B", "rows of a batch"),
    "embed_dim": ("D", "features of a token"),
    "features_in": ("D", "input features of a linear map"),
    "features": ("D", "features that a norm averages over, or features of a pooled output"),
    "features_out": ("D", "output features of a linear map"),
    "heads": ("N", "attention heads"),
    "key_heads": ("K", "heads of keys and values, each shared by several query heads"),
    "any_heads": ("N", "heads of queries or of keys"),
    "head_dim": ("H", "features of a head"),
    "value_dim": ("H", "features of each head of the values"),
    "attention_dim": ("D", "features of all heads together"),
    "pairs": ("P", "pairs of a head's features that are rotated"),
    "experts": ("E", "experts of a feed-forward"),
    "vocab": ("V", "tokens of the vocabulary"),
    "classes": ("C", "classes of a head"),
    "channels": ("B", "channels of an image"),
    "height": ("Y", "rows of pixels"),
    "width": ("X", "columns of pixels"),
    "patches": ("T", "patches of an image"),
    "patch_dim": ("D", "numbers in a patch"),
    "mel_bins": ("D", "mel bins of a spectrogram"),
    "frames": ("T", "frames of audio"),
    "earlier": ("T", "positions before a convolution's input"),
    "chunks": ("M", "chunks of a sequence in a recurrence"),
    "chunk": ("T", "positions of a chunk"),
    "steps": ("K", "steps of an optimizer"),
}
"""Each dimension's letter, and a noun for the elements along the dimension."""
