"""A made-up mixer, input and rotary scaling: tests add the rows of this file to the tables of `transparity.parts`."""

from transparity.config import TransformerConfig
from transparity.parts.part import Part, joined, linear, tapped
from transparity.parts.tables import INPUTS, MIXERS, SCALINGS
from transparity.parts.variants import Held, Input, Mixer, Scaling, check_needed


def _mean(config: TransformerConfig, length: str) -> Part:
    value = linear("value", config.embed_dim, config.embed_dim, bias=False)
    return joined(value, tapped({"output": ("batch", length, config.embed_dim)}))


def _check_mean(config: TransformerConfig) -> None:
    check_needed(config, {"architecture": "decoder"}, "a mean over the past needs a decoder-only model")


MEAN = Mixer(
    _mean, lambda config: {"sum": Held(("batch", config.embed_dim), is_wide=True)}, "mean_of_past", _check_mean
)


def _features(config: TransformerConfig, stack: str, length: str) -> Part:
    return linear("feature_projection", config.embed_dim, config.mel_bins or 0, bias=True)


def _check_features(config: TransformerConfig) -> None:
    needed = {"pad_id": None, "padding": "token", "num_token_types": 0, "head": "hidden"}
    check_needed(config, needed, "the input is features, which have no tokens and no padding")


FEATURES = Input(
    _features,
    lambda config, stack: config.mel_bins is not None and config.architecture == "encoder",
    name="features",
    axes=lambda config: (config.num_frames, config.mel_bins or 0),
    expected="(batch, frames, mel_bins), {} frames of {} bins",
    positions=lambda config: config.num_frames,
    check=_check_features,
)

ROWS = ((MIXERS, "mean", MEAN), (INPUTS, "features", FEATURES), (SCALINGS, "root", Scaling()))
