"""Who runs: our columns, and what a user would take instead. A row each."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks.race.workloads import Kind, Workload

KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""glibc keeps large blocks for the next call, where it would give them back and have them cleared again."""

FORWARD: tuple[Kind, ...] = ("forward",)
ALL: tuple[Kind, ...] = ("forward", "decode", "train")
TORCH, COMPILED, JAX, NUMPY, LIMIT = "torch, eager", "compiled", "jax, jit", "numpy", "limit"


@dataclass(frozen=True)
class Candidate:
    """A way to do a workload."""

    name: str
    kinds: tuple[str, ...]
    """What it is compared within; it is listed under the first."""
    needs: tuple[str, ...]
    """What is imported first, and timed; a candidate whose needs are not installed is absent."""
    build: str
    """`module:function`, from a `Task` to a `Run`."""
    tasks: tuple[Kind, ...] = FORWARD
    architectures: tuple[str, ...] = ("encoder-decoder", "decoder")
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    ours: bool = False
    own_weights: str = ""
    """Why its layout cannot hold the weights; such a candidate is timed with its own and held to nothing."""
    also: tuple[str, ...] = ()
    """What has to be installed besides, and is not imported."""
    longest: int | None = None
    """It is not given longer inputs."""
    choices: dict[str, Any] = field(default_factory=dict)
    """What else `build` is called with."""
    environment: dict[str, str] = field(default_factory=dict)
    """`{threads}` stands for the cores that it may use."""

    @property
    def is_limit(self) -> bool:
        return LIMIT in self.kinds

    @property
    def held(self) -> bool:
        """Whether its result is held to the oracle."""
        return not (self.is_limit or self.own_weights)

    def why_absent(self) -> str | None:
        """Which of its needs is not installed, or None."""
        missing = [name for name in (*self.needs, *self.also) if find_spec(name.partition(".")[0]) is None]
        return f"{', '.join(missing)} is not installed" if missing else None

    def why_not(self, workload: Workload, device: str = "cpu") -> str | None:
        """Why it cannot do a workload, or None."""
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


def _ours(name: str, kind: str, package: str, **fields: Any) -> Candidate:
    column, mode = name.partition(",")[0].split()
    build, choices = "benchmarks.peers.ours:build", {"name": column, "mode": mode}
    return Candidate(name, (kind,), (f"{package}.port",), build, ours=True, choices=choices, **fields)


_torch = functools.partial(Candidate, kinds=(TORCH,), needs=("torch",), devices=("cpu", "cuda"))
_jax = functools.partial(Candidate, kinds=(JAX,), needs=("jax",), devices=("cpu", "cuda"))
_limit = functools.partial(Candidate, kinds=(LIMIT,), tasks=("forward", "train"))
_bandwidth = functools.partial(Candidate, kinds=(LIMIT,), tasks=("decode",))
_BOTH, _ANYWHERE = ("float32", "bfloat16"), ("cpu", "cuda")
_EITHER: dict[str, Any] = {"dtypes": _BOTH, "devices": _ANYWHERE}
_GRADIENTS: tuple[Kind, ...] = ("forward", "train")
_INFERENCE: tuple[Kind, ...] = ("forward", "decode")
_COMPILED = {"compiled": True}
_EXPORT = ("torch", "onnxscript")
"""What writes the ONNX file."""

BASELINE = "blog-style"
"""What the others are measured against where not all fit into memory at once: it can do everything, and needs least."""

CANDIDATES: tuple[Candidate, ...] = (
    _ours("pytorch eager", TORCH, "transparity_pytorch", also=("torch",), tasks=ALL, **_EITHER),
    _ours("pytorch compile", COMPILED, "transparity_pytorch", also=("torch",), tasks=_INFERENCE, **_EITHER),
    _ours("flax jit", JAX, "transparity_flax", also=("flax", "jax", "optax"), tasks=ALL, **_EITHER),
    _ours(
        "flax jit, spread",
        JAX,
        "transparity_flax",
        also=("flax", "jax"),
        dtypes=_BOTH,
        environment={"XLA_FLAGS": "--xla_force_host_platform_device_count={threads}"},
    ),
    _ours("numpy eager", NUMPY, "transparity_numpy", tasks=_INFERENCE),
    _torch(BASELINE, build="benchmarks.peers.torch_blog:build", tasks=ALL, dtypes=_BOTH),
    _torch("hand-fused", build="benchmarks.peers.torch_fused:build", tasks=ALL, dtypes=_BOTH),
    _torch("nn.Transformer", build="benchmarks.peers.torch_transformer:build", tasks=_GRADIENTS),
    _torch("nn.Transformer, slow", build="benchmarks.peers.torch_transformer:build", choices={"fast_path": False}),
    _torch(
        "autocast",
        build="benchmarks.peers.torch_fused:build",
        dtypes=("bfloat16",),
        choices={"autocast": True},
    ),
    # Marian learns neither its positions nor the bias of its head, so that its training would be another one.
    _torch(
        "transformers", needs=("torch", "transformers"), build="benchmarks.peers.hugging_face:build", tasks=_INFERENCE
    ),
    _torch(
        "x-transformers",
        needs=("torch", "x_transformers"),
        build="benchmarks.peers.x_transformers_:build",
        tasks=_GRADIENTS,
        own_weights="its norms and attentions have no biases",
    ),
    _torch("blog-style, compiled", kinds=(COMPILED,), build="benchmarks.peers.torch_blog:build", choices=_COMPILED),
    _torch("hand-fused, compiled", kinds=(COMPILED,), build="benchmarks.peers.torch_fused:build", choices=_COMPILED),
    _torch(
        "nn.Transformer, compiled",
        kinds=(COMPILED,),
        build="benchmarks.peers.torch_transformer:build",
        choices=_COMPILED,
    ),
    Candidate(
        "OpenVINO",
        (COMPILED,),
        ("openvino",),
        "benchmarks.peers.openvino_:build",
        also=_EXPORT,
        dtypes=_BOTH,
    ),
    Candidate("ONNX Runtime", (COMPILED, NUMPY), ("onnxruntime",), "benchmarks.peers.onnx_runtime:build", also=_EXPORT),
    Candidate(
        "CTranslate2",
        (COMPILED, TORCH),
        ("ctranslate2",),
        "benchmarks.peers.ctranslate2_:build",
        tasks=_INFERENCE,
        architectures=("decoder",),
    ),
    _jax("hand-written JAX", needs=("jax", "optax"), build="benchmarks.peers.jax_plain:build", tasks=ALL, dtypes=_BOTH),
    _jax("flax.nnx", needs=("flax.nnx", "optax"), build="benchmarks.peers.flax_nnx:build", tasks=_GRADIENTS),
    _jax("flax.linen", needs=("flax.linen", "optax"), build="benchmarks.peers.flax_linen:build", tasks=_GRADIENTS),
    _jax("equinox", needs=("equinox", "optax"), build="benchmarks.peers.equinox_:build", tasks=_GRADIENTS),
    _jax(
        "keras-hub",
        needs=("keras_hub", "optax"),
        build="benchmarks.peers.keras_hub_:build",
        tasks=_GRADIENTS,
        environment={"KERAS_BACKEND": "jax"},
    ),
    Candidate("NumPy, einsum", (NUMPY,), ("numpy",), "benchmarks.peers.numpy_einsum:build"),
    Candidate(
        "ONNX ReferenceEvaluator",
        (NUMPY,),
        ("onnx.reference",),
        "benchmarks.peers.onnx_reference:build",
        also=_EXPORT,
        longest=1024,
    ),
    _limit(
        "torch product", needs=("torch",), build="benchmarks.race.limits:torch_product", dtypes=_BOTH, devices=_ANYWHERE
    ),
    _limit(
        "torch product, packed", needs=("torch",), build="benchmarks.race.limits:torch_packed_product", dtypes=_BOTH
    ),
    _limit("numpy product", needs=("numpy",), build="benchmarks.race.limits:numpy_product"),
    _limit("jax product", needs=("jax",), build="benchmarks.race.limits:jax_product", dtypes=_BOTH, devices=_ANYWHERE),
    _bandwidth("torch bandwidth", needs=("torch",), build="benchmarks.race.limits:torch_bandwidth", devices=_ANYWHERE),
    _bandwidth("numpy bandwidth", needs=("numpy",), build="benchmarks.race.limits:numpy_bandwidth"),
    _bandwidth("jax bandwidth", needs=("jax",), build="benchmarks.race.limits:jax_bandwidth", devices=_ANYWHERE),
)


def with_environment(candidate: Candidate, environment: dict[str, str]) -> Candidate:
    """The same candidate in another environment."""
    return dataclasses.replace(candidate, environment=candidate.environment | environment)
