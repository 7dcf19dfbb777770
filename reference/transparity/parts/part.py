"""A part of a model: its parameters and activations by name, and how the parameters may be distributed over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from transparity.config import TransformerConfig

T = TypeVar("T")
Shapes = dict[str, tuple[int, ...]]
TapShapes = dict[str, tuple[int | str, ...]]


class Cut(NamedTuple):
    """The axis along which a parameter may be distributed over ranks; heads are never split."""

    axis: int | None = None
    """None means that every rank has the whole parameter."""
    heads: int | None = None
    """Number of heads along the axis. None means that the axis consists of features that belong to no head."""
    of: str = "heads"
    """The words for the heads along the axis in messages, such as `heads of keys`."""
    why_whole: str | None = None
    """The reason why the parameter may not be distributed with this configuration."""

    def bias(self) -> Cut:
        """Return the cut of the bias of a linear map whose weight (out, in) has this cut."""
        return self if self.axis == 0 else self._replace(axis=None)


WHOLE = Cut()


class Part(NamedTuple):
    """The parameters and activations of a part of a model, in the order of the forward pass. Names are relative to the
    part."""

    parameters: Shapes
    taps: TapShapes
    """Shapes of activations. A size is a number, `batch`, or the name of the input with this number of positions."""
    cuts: dict[str, Cut]
    """The cut of each parameter; a parameter without a cut may not be distributed."""

    def under(self, scope: str) -> Part:
        """Prefix every name by `scope`."""
        return Part(_prefixed(scope, self.parameters), _prefixed(scope, self.taps), _prefixed(scope, self.cuts))


NOTHING = Part({}, {}, {})


def tapped(taps: Mapping[str, tuple[int | str, ...]]) -> Part:
    """Return a part of a model that has activations, but no parameters."""
    return Part({}, dict(taps), {})


def joined(*parts: Part) -> Part:
    return Part(
        {name: value for each in parts for name, value in each.parameters.items()},
        {name: value for each in parts for name, value in each.taps.items()},
        {name: value for each in parts for name, value in each.cuts.items()},
    )


def linear(name: str, out: int, into: int, *, bias: bool, cut: Cut = WHOLE) -> Part:
    shapes: Shapes = {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})
    return Part(shapes, {}, {key: cut.bias() if key.endswith("bias") else cut for key in shapes if cut != WHOLE})


def vector(name: str, size: int, cut: Cut = WHOLE) -> Part:
    return Part({name: (size,)}, {}, {name: cut} if cut != WHOLE else {})


def norm(name: str, config: TransformerConfig, *, length: str | None = None) -> Part:
    """Describe a norm over `embed_dim` features, with an activation if `length` names the axis of positions."""
    ends = ["weight"] + ["bias"] * config.has_norm_bias + ["running_mean", "running_var"] * (config.norm == "batch")
    taps: TapShapes = {name: ("batch", length, config.embed_dim)} if length else {}
    return Part({f"{name}.{end}": (config.embed_dim,) for end in ends}, taps, {})


def _prefixed(scope: str, values: dict[str, T]) -> dict[str, T]:
    return {f"{scope}.{name}": value for name, value in values.items()}
