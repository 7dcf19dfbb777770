"""The environment that figures depend on: cores, thread variables, kernels, the processor, versions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

KERNEL_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE"),
)
"""Variables that restrict a library to the kernels of another processor."""

PACKAGES = (
    *("torch", "jax", "flax", "numpy", "optax", "transformers", "x-transformers", "equinox", "keras", "keras-hub"),
    *("onnx", "onnxruntime", "openvino", "ctranslate2"),
)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(name: str, file: str = "/proc/self/status") -> int:
    """A line of a process's status, or of another file of Linux, in bytes; raises `OSError` on another system."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


class CoresBusy:
    """The number of cores that a stretch of time kept busy, on average."""

    number = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        wall, used = time.perf_counter(), time.process_time()
        yield
        self.number = round((time.process_time() - used) / (time.perf_counter() - wall), 2)


def threads(cores_busy: float, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The cores at hand, the cores that were busy, and the variables that limit threads."""
    variables = {name: environment.get(name, "not set") for name in (*THREAD_VARIABLES, "XLA_FLAGS")}
    return {"cores": cores(), "cores_busy": cores_busy} | variables


def overridden_kernels() -> dict[str, str]:
    """The kernel variables of this process; candidates of the race do not inherit them."""
    return {name: os.environ[name] for name in KERNEL_VARIABLES if name in os.environ}


def versions() -> dict[str, str]:
    """The versions of the libraries that are installed."""
    return {name: found for name in PACKAGES if (found := _version(name))}


def cuda(device: str) -> dict[str, str]:
    """The name of a CUDA device and the precision of its float32 products; below `highest`, TF32 may be used."""
    if device != "cuda":
        return {}
    import torch

    precision = torch.get_float32_matmul_precision()
    return {"device name": torch.cuda.get_device_name(), "float32 products": f"{precision} in PyTorch, highest in JAX"}


def processor() -> str:
    """The name of the processor."""
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
