import dataclasses

import numpy as np
import pytest
from benchmarks.flops import forward_flops
from tests.helpers import tiny

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.cases import CASES, IMAGES
from transparity_conformance.oracle.probes import pixel_inputs

SIZES = {"batch": 5, "source": 7, "target": 4, "tokens": 6}
LENGTHS = (
    SIZES,
    {"batch": 1, "source": 1, "target": 1, "tokens": 1},
    {"batch": 3, "source": 2, "target": 11, "tokens": 11},
)
UNEVEN = {"num_encoder_layers": 1, "num_decoder_layers": 3, "feed_forward_dim": 17}


def lengths_of(config: TransformerConfig, sizes: dict[str, int]) -> dict[str, int]:
    return {name: sizes[name] for name in config.input_names}


def counted_by_torch(config: TransformerConfig, batch: int, **lengths: int) -> int:
    """Return the FLOPs that PyTorch counts in a forward pass with taps, where attention is two matrix products."""
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from transparity_pytorch.port import build

    forward = build(config, initialize_parameters(config), dtype="float32")
    inputs: dict[str, np.ndarray] = {name: np.ones((batch, length), np.int64) for name, length in lengths.items()}
    if config.reads_pixels:
        inputs = {"pixels": pixel_inputs(config, batch, 0)}
    inputs |= {name: np.ones_like(inputs[config.input_names[0]]) for name in config.further_inputs}
    with FlopCounterMode(display=False) as counter:
        forward(**inputs)
    return int(counter.get_total_flops())


RESIZED = {name: preset(name).resized() for name in PRESETS}
IMAGE = {"pixels": IMAGES.max_length}

MODELS: list[tuple[str, TransformerConfig, int, dict[str, int]]] = [
    *(
        (name, config, sizes["batch"], lengths_of(config, sizes))
        for name, config in RESIZED.items()
        for sizes in LENGTHS
    ),
    *((name, config.resized(**UNEVEN), 5, lengths_of(config, SIZES)) for name, config in RESIZED.items()),
    *((case, config, 5, lengths_of(config, SIZES)) for case, config in CASES.items()),
    ("image, hidden", dataclasses.replace(IMAGES, head="hidden"), 5, IMAGE),
    ("image, pooled", dataclasses.replace(IMAGES, head="pooled"), 5, IMAGE),
    ("lone encoder", dataclasses.replace(RESIZED["translation"], architecture="encoder"), 2, {"tokens": 5}),
]


@pytest.mark.parametrize(("config", "batch", "lengths"), [pytest.param(*row, id=name) for name, *row in MODELS])
def test_flops_are_those_that_torch_counts(config: TransformerConfig, batch: int, lengths: dict[str, int]) -> None:
    assert forward_flops(config, batch, **lengths) == counted_by_torch(config, batch, **lengths)


def test_flops_of_one_product_by_hand() -> None:
    """Use one layer with 2 features and 3 tokens. Projections: 4 · 2·3·2·2. Scores and context: 2 · 2·3·3·2.
    Feed-forward: 2 · 2·3·2·8. Head: 2·3·2·7."""
    config = tiny(target_vocab_size=7, embed_dim=2, feed_forward_dim=8)
    assert forward_flops(config, 1, tokens=3) == 96 + 72 + 192 + 84


def test_lengths_of_other_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lengths has tokens; expected source, target\."):
        forward_flops(preset("translation"), 1, tokens=3)
