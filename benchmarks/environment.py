"""Everything that timings depend on: cores, environment variables for threads and kernels, processor, versions."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

KERNEL_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE"),
)
"""Environment variables that make a library use the kernels of another processor."""

PACKAGES = (
    *("torch", "jax", "flax", "numpy", "optax", "transformers", "equinox", "keras", "keras-hub"),
    *("onnx", "onnxruntime", "openvino", "ctranslate2"),
)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(name: str, file: str = "/proc/self/status") -> int:
    """Return the bytes of the entry `name` in a /proc file of Linux. Raise `OSError` on other systems."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def python_path(root: Path) -> str:
    """Return a PYTHONPATH: the packages in the checkout `root`, then all import paths outside this checkout."""
    found = [str(root / name) for name in ("", "reference", "backends", "conformance")]
    return os.pathsep.join([*found, *(path for path in sys.path if path and not Path(path).is_relative_to(ROOT))])


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "MKL_", "MALLOC_", "XLA_"))}


def overridden_kernels() -> dict[str, str]:
    return {name: os.environ[name] for name in KERNEL_VARIABLES if name in os.environ}


def versions() -> dict[str, str]:
    return {name: found for name in PACKAGES if (found := _version(name))}


def cuda(device: str) -> dict[str, str]:
    """Return the name of the GPU and the precision of float32 products; below `highest`, PyTorch may use TF32."""
    if device != "cuda":
        return {}
    import torch

    precision = torch.get_float32_matmul_precision()
    return {"device name": torch.cuda.get_device_name(), "float32 products": f"{precision} in PyTorch, highest in JAX"}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
