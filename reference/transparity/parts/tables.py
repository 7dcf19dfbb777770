"""Tables of mixers, inputs and rotary scalings. A new variant needs a row here, and a file and a row in each column."""

from transparity.parts.attention import ATTENTION
from transparity.parts.inputs import FRAMES, PATCHES, TOKENS
from transparity.parts.recurrence import GATED_DELTA, STATE_SPACE
from transparity.parts.rotary import LLAMA3, LONGROPE, YARN
from transparity.parts.variants import Input, Mixer, Scaling

MIXERS: dict[str, Mixer] = {"attention": ATTENTION, "gated-delta": GATED_DELTA, "state-space": STATE_SPACE}
"""The values of `config.mixer`."""

INPUTS: dict[str, Input] = {"tokens": TOKENS, "patches": PATCHES, "frames": FRAMES}
"""The values of `config.input_kinds[stack]`."""

SCALINGS: dict[str, Scaling] = {
    "none": Scaling(),
    "linear": Scaling(),
    "llama3": LLAMA3,
    "yarn": YARN,
    "longrope": LONGROPE,
}
"""The values of `config.rotary_scaling`."""
