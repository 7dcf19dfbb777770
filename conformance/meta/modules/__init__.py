"""Modules of Equinox and Keras as people write them, right and wrong, and how they are judged."""

MATRICES = {
    "self_attention.query": "q",
    "self_attention.key": "k",
    "self_attention.value": "v",
    "self_attention.output": "o",
    "feed_forward.gate": "gate",
    "feed_forward.up": "up",
    "feed_forward.down": "down",
}
"""The names that both Llamas have for our matrices of a layer."""
