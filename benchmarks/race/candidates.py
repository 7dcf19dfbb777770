"""The candidates of the race, a row each: our columns, their peers, and the limits of the machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks.workloads import Kind, Workload

KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""glibc keeps large blocks for the next call, instead of returning them to the system, which clears them."""

FORWARD: tuple[Kind, ...] = ("forward",)
ALL: tuple[Kind, ...] = ("forward", "decode", "train")
TORCH, COMPILED, JAX, NUMPY, LIMIT = "torch, eager", "compiled", "jax, jit", "numpy", "limit"


@dataclass(frozen=True)
class Candidate:
    """One implementation that can run workloads."""

    name: str
    kinds: tuple[str, ...]
    """The groups that it is compared within; it is listed under the first."""
    needs: tuple[str, ...]
    """Modules that are imported first, and timed; without them the candidate is missing."""
    build: str
    """`module:function`, from a `Task` to a `Run`."""
    tasks: tuple[Kind, ...] = FORWARD
    architectures: tuple[str, ...] = ("encoder-decoder", "decoder")
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    ours: bool = False
    own_weights: str = ""
    """Why its layout cannot hold the weights; such a candidate is timed with its own weights and not compared."""
    also: tuple[str, ...] = ()
    """Further modules that have to be installed, and are not imported beforehand."""
    longest: int | None = None
    """The longest input that it is given."""
    choices: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `build`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its process; `{threads}` is replaced by the number of cores."""

    @property
    def is_limit(self) -> bool:
        return LIMIT in self.kinds

    @property
    def held(self) -> bool:
        """Return whether its result is compared with the oracle."""
        return not (self.is_limit or self.own_weights)

    def why_missing(self) -> str | None:
        """The packages that are not installed, or None."""
        missing = [name for name in (*self.needs, *self.also) if find_spec(name.partition(".")[0]) is None]
        return f"{', '.join(missing)} is not installed" if missing else None

    def why_not(self, workload: Workload, device: str = "cpu") -> str | None:
        """The reason that it cannot run a workload, or None."""
        longest = max(workload.lengths.values())
        if workload.kind not in self.tasks:
            return f"it is not asked to {workload.kind}"
        if workload.config.architecture not in self.architectures:
            return f"it is written for {' and '.join(self.architectures)} only"
        if workload.dtype not in self.dtypes:
            return f"it computes in {' and '.join(self.dtypes)} only"
        if device not in self.devices:
            return f"it runs on {' and '.join(self.devices)} only"
        if self.longest and longest > self.longest:
            return f"it is not given more than {self.longest} tokens, for it holds all scores several times"
        return None


_BOTH, _ANYWHERE = ("float32", "bfloat16"), ("cpu", "cuda")
_EITHER: dict[str, Any] = {"dtypes": _BOTH, "devices": _ANYWHERE}
_SPREAD = {"XLA_FLAGS": "--xla_force_host_platform_device_count={threads}"}
_DECODER: dict[str, Any] = {"tasks": ("forward", "decode"), "architectures": ("decoder",)}
_UNLIKE: dict[str, Any] = {"own_weights": "its norms and attentions have no biases"}
_GRADIENTS: tuple[Kind, ...] = ("forward", "train")
_INFERENCE: tuple[Kind, ...] = ("forward", "decode")
_COMPILED = {"compiled": True}
_EXPORT = ("torch", "onnxscript")
"""The packages that write the ONNX file."""


def _ours(name: str, kind: str, package: str, *also: str, **fields: Any) -> Candidate:
    column, mode = name.partition(",")[0].split()
    fields |= {"choices": {"name": column, "mode": mode}, "also": also, "ours": True}
    return Candidate(name, (kind,), (f"transparity_{package}.port",), "benchmarks.peers.ours:build", **fields)


def _torch(name: str, module: str, kind: str = TORCH, also_needs: tuple[str, ...] = (), **fields: Any) -> Candidate:
    build = f"benchmarks.peers.torch.{module}:build"
    return Candidate(name, (kind,), ("torch", *also_needs), build, devices=_ANYWHERE, **fields)


def _jax(name: str, module: str, needs: str, **fields: Any) -> Candidate:
    build = f"benchmarks.peers.jax.{module}"
    return Candidate(name, (JAX,), (needs, "optax"), build, devices=_ANYWHERE, **fields)


def _runtime(name: str, module: str, needs: str, kinds: tuple[str, ...], **fields: Any) -> Candidate:
    return Candidate(name, kinds, (needs,), f"benchmarks.peers.runtimes.{module}", **fields)


def _limit(name: str, tasks: tuple[Kind, ...] = _GRADIENTS, **fields: Any) -> Candidate:
    library, kind = name.partition(",")[0].split()
    choices = {"library": "packed" if name.endswith("packed") else library}
    build = f"benchmarks.race.limits:{kind}"
    return Candidate(name, (LIMIT,), (library,), build, tasks=tasks, choices=choices, **fields)


CANDIDATES: tuple[Candidate, ...] = (
    _ours("pytorch eager", TORCH, "pytorch", "torch", tasks=ALL, **_EITHER),
    _ours("pytorch compile", COMPILED, "pytorch", "torch", tasks=_INFERENCE, **_EITHER),
    _ours("flax jit", JAX, "flax", "flax", "jax", "optax", tasks=ALL, **_EITHER),
    _ours("flax jit, spread", JAX, "flax", "flax", "jax", dtypes=_BOTH, environment=_SPREAD),
    _ours("numpy eager", NUMPY, "numpy", tasks=_INFERENCE),
    _torch("blog-style", "blog", tasks=ALL, dtypes=_BOTH),
    _torch("hand-fused", "fused", tasks=ALL, dtypes=_BOTH),
    _torch("nn.Transformer", "nn_transformer", tasks=_GRADIENTS),
    _torch("nn.Transformer, slow", "nn_transformer", choices={"fast_path": False}),
    _torch("autocast", "fused", dtypes=("bfloat16",), choices={"autocast": True}),
    # Marian trains neither its positions nor the bias of its head, so its training would be another one.
    _torch("transformers", "hugging_face", also_needs=("transformers",), tasks=_INFERENCE),
    _torch("x-transformers", "x_transformers", also_needs=("x_transformers",), tasks=_GRADIENTS, **_UNLIKE),
    _torch("blog-style, compiled", "blog", COMPILED, choices=_COMPILED),
    _torch("hand-fused, compiled", "fused", COMPILED, choices=_COMPILED),
    _torch("nn.Transformer, compiled", "nn_transformer", COMPILED, choices=_COMPILED),
    _runtime("OpenVINO", "onnx:openvino", "openvino", (COMPILED,), also=_EXPORT, dtypes=_BOTH),
    _runtime("ONNX Runtime", "onnx:onnx_runtime", "onnxruntime", (COMPILED, NUMPY), also=_EXPORT),
    _runtime("CTranslate2", "ctranslate2:build", "ctranslate2", (COMPILED, TORCH), **_DECODER),
    _jax("hand-written JAX", "plain:build", "jax", tasks=ALL, dtypes=_BOTH),
    _jax("flax.nnx", "libraries:flax_nnx", "flax.nnx", tasks=_GRADIENTS),
    _jax("flax.linen", "libraries:flax_linen", "flax.linen", tasks=_GRADIENTS),
    _jax("equinox", "libraries:equinox", "equinox", tasks=_GRADIENTS),
    _jax("keras-hub", "keras_hub:build", "keras_hub", tasks=_GRADIENTS, environment={"KERAS_BACKEND": "jax"}),
    Candidate("NumPy, einsum", (NUMPY,), ("numpy",), "benchmarks.peers.numpy_einsum:build"),
    _runtime("ONNX ReferenceEvaluator", "onnx:reference", "onnx.reference", (NUMPY,), also=_EXPORT, longest=1024),
    _limit("torch product", **_EITHER),
    _limit("torch product, packed", dtypes=_BOTH),
    _limit("numpy product"),
    _limit("jax product", **_EITHER),
    _limit("torch bandwidth", ("decode",), devices=_ANYWHERE),
    _limit("numpy bandwidth", ("decode",)),
    _limit("jax bandwidth", ("decode",), devices=_ANYWHERE),
)


def with_environment(candidate: Candidate, environment: dict[str, str]) -> Candidate:
    """The same candidate in another environment."""
    return dataclasses.replace(candidate, environment=candidate.environment | environment)
