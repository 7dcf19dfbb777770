"""Read a Hugging Face folder: config.json, and the tensors in one or several safetensors files.

A file stores experts in MXFP4 as two tensors of bytes, which `load_experts` combines.
"""

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - adds the dtype bfloat16 to NumPy, which safetensors needs
import numpy as np
from safetensors import SafetensorError, safe_open

from transparity.errors import TransparityError
from transparity.limits.files import read_header
from transparity.limits.memory import check_fits
from transparity.text import VALUE, reason, safe, shown
from transparity_conformance.checkpoints.files import LARGEST_JSON, parse_json, read_bytes, refuse_constant
from transparity_conformance.checkpoints.scaled import BLOCK, TensorBytes, float8_rows, mxfp4_rows, tensor_bytes
from transparity_conformance.checkpoints.scaled import DTYPES as FLOAT8
from transparity_conformance.storage.mapped import Mapped
from transparity_conformance.storage.paths import is_file, is_folder

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
UNREADABLE = (OSError, SafetensorError, OverflowError, MemoryError)
"""The exceptions that reading an invalid file may raise."""

DTYPES = ("F32", "F16", "BF16")
"""The dtypes whose values float32 represents exactly."""

SCALES = ("_scale_inv", "_scale")


TOWERS = {
    "clip": {
        "text_config": {"model_type": "clip_text_model", "architectures": ["CLIPTextModelWithProjection"]},
        "vision_config": {"model_type": "clip_vision_model", "architectures": ["CLIPVisionModelWithProjection"]},
    }
}
"""The models with two towers. Each tower has a section of config.json, a class and a `model_type`."""


class CheckpointError(TransparityError):
    """A checkpoint cannot be read, or no configuration describes its model."""


def read_tower(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the config.json of a checkpoint, or of one tower such as `clip/text_config`."""
    folder, section = path.parent, path.name
    if is_folder(path) or section not in {name for sections in TOWERS.values() for name in sections}:
        return path, read_fields(path)
    given = read_fields(folder)
    towers = TOWERS.get(str(given.get("model_type")), {})
    older = given.get(f"{section}_dict")  # transformers prefers the older section
    own = given.get(section) if older is None else older
    if section not in towers or not isinstance(own, dict):
        raise CheckpointError(
            f"{path} names a tower, but {folder / CONFIG} has no section {section}, or no model_type among "
            f"{', '.join(TOWERS)}."
        )
    return folder, own | {"projection_dim": given.get("projection_dim", 512)} | towers[section]


def read_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of config.json. Raise `CheckpointError` for a missing file, `BundleError` for invalid JSON."""
    if not is_folder(folder):
        if folder.suffix in PICKLES and is_file(folder):
            raise _pickled(folder)
        raise CheckpointError(f"{folder} is not a folder; expected a folder with {CONFIG} and {WEIGHTS}.")
    path = folder / CONFIG
    if not is_file(path):
        raise CheckpointError(f"{folder} has no {CONFIG}; expected a Hugging Face folder.")
    # An infinite number gets the form of transformers 5; NaN is an error.
    constant = lambda name: refuse_constant(name) if name == "NaN" else {"__float__": name}
    fields = parse_json(path, read_bytes(path, LARGEST_JSON), constant)
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} is {shown(fields)}; expected an object of fields.")
    return fields


def tensor_files(folder: Path) -> dict[str, Path]:
    where: dict[str, Path] = {}
    for path in _files(folder):
        read_header(path, CheckpointError)
        with _opened(path) as file:
            names = list(file.keys())
        for name in names:
            if name in where:
                raise CheckpointError(
                    f"{shown(name)} is in {where[name].name} and in {path.name}; expected each tensor in one file."
                )
            where[name] = path
    return where


def load_tensors(
    where: Mapping[str, Path],
    wanted: Collection[str],
    in_place: Collection[str] = (),
    block: tuple[int, int] | None = None,
) -> dict[str, np.ndarray | Mapped]:
    """Load tensors as float32, which is exact for float16 and bfloat16.

    Matrices in `in_place` stay in their files. A float8 matrix is multiplied by its scales. The matrix has one scale, a
    scale for each row, or a scale for each `block` of rows and columns. Raise `CheckpointError` for other dtypes, and
    for tensors that do not fit into memory.
    """
    tensors: dict[str, np.ndarray | Mapped] = {}
    for path in dict.fromkeys(where[name] for name in wanted):
        with _opened(path) as file:
            whole: dict[str, int] = {}
            for name in (name for name in wanted if where[name] == path):
                shape = _shape(file.get_slice(name), name, path)
                rows = _float8(file.get_slice(name), name, where, block)
                if len(shape) == 2 and (name in in_place or rows is not None):
                    found = Mapped(path, name, (shape[0], shape[1]), rows=rows)
                    tensors[name] = found if name in in_place else np.asarray(found)
                    continue
                whole[name] = 4 * math.prod(shape)
            check_fits(f"{path}", sum(whole.values()), CheckpointError)
            tensors |= {name: file.get_tensor(name).astype(np.float32) for name in whole}
    return tensors


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except UNREADABLE as error:
        raise CheckpointError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None


def _float8(
    found: Any, name: str, where: Mapping[str, Path], block: tuple[int, int] | None
) -> Callable[[slice], np.ndarray] | None:
    dtype, shape = found.get_dtype(), tuple(found.get_shape())
    if dtype not in FLOAT8:
        return None
    scaled = scale_of(name, where)
    if scaled is None or len(shape) != 2:
        raise CheckpointError(
            f"{shown(name)} of {where[name]} has the dtype {dtype}, but there is no {name}{SCALES[0]}; expected a "
            "matrix with its scales."
        )
    scale = np.asarray(load_tensors(where, [scaled])[scaled])
    scale = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    for high, wide in ((shape[0], shape[1]), (1, shape[1]), *((block,) if block else ())):
        if scale.shape == (-(-shape[0] // high), -(-shape[1] // wide)):
            return functools.partial(float8_rows, tensor_bytes(where[name], name), scale, (high, wide))
    raise CheckpointError(
        f"{shown(scaled)} of {where[scaled]} has the shape {shown(scale.shape)}; expected one scale for "
        f"{shown(name)}, for each of its {shape[0]} rows, or for each weight_block_size block."
    )


def scale_of(name: str, where: Collection[str]) -> str | None:
    return next((name + suffix for suffix in SCALES if name + suffix in where), None)


def _shape(found: Any, name: str, path: Path) -> list[int]:
    if (dtype := found.get_dtype()) not in (*DTYPES, *FLOAT8):
        raise CheckpointError(
            f"{shown(name)} of {path} has the dtype {dtype}; expected one of {', '.join((*DTYPES, *FLOAT8))}: save the "
            "model without quantization."
        )
    return list(found.get_shape())


def _files(folder: Path) -> list[Path]:
    """Return the safetensors files that the index names; without an index, return the only file."""
    index = folder / INDEX
    if is_file(index):
        files = _indexed(index)
        if is_file(folder / WEIGHTS) and folder / WEIGHTS not in files:
            raise CheckpointError(
                f"{folder} has {WEIGHTS}, and an index of other files; expected only one of the two, because some "
                "loaders read the file, and others the index."
            )
        return files
    found = sorted(folder.glob("*.safetensors"))
    if folder / WEIGHTS in found:
        return [folder / WEIGHTS]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"{folder} has {names} and no {INDEX}; expected the index, or only one file.")
    if not found:
        pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            raise _pickled(pickles[0])
        raise CheckpointError(f"{folder} has no {WEIGHTS}; expected the weights as safetensors.")
    return found


def _indexed(index: Path) -> list[Path]:
    content = parse_json(index, read_bytes(index, LARGEST_JSON))
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise CheckpointError(f"{index} has no valid weight_map; expected an object with the file of each tensor.")
    files = []
    for name in sorted(set(weights.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{index} names the file {shown(name)}; expected a file in the same folder.")
        if not is_file(index.parent / name):
            raise CheckpointError(
                f"{index.parent} has no {safe(name, VALUE)}, which {INDEX} names; expected all files in the index."
            )
        files.append(index.parent / name)
    return files


def _pickled(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is a pickle, and reading it can run any code; expected safetensors: if you trust the "
        "pickle, load it with transformers and call save_pretrained(folder)."
    )


def as_json(value: Any) -> str:
    return safe(json.dumps(value), VALUE)


NUMBERS, EXPONENTS = "_blocks", "_scales"
"""The suffixes of the two tensors of MXFP4 experts: 4-bit numbers, and an exponent for each block of numbers."""


def unpacked_files(where: Mapping[str, Path]) -> dict[str, Path]:
    """Return the file of each tensor, where the two tensors of MXFP4 experts count as one."""
    names = [name.removesuffix(NUMBERS) for name in where if name.endswith(NUMBERS)]
    whole = {name: where[name + NUMBERS] for name in names if name + EXPONENTS in where}
    bytes_of = {name + ending for name in whole for ending in (NUMBERS, EXPONENTS)}
    return {name: path for name, path in where.items() if name not in bytes_of} | whole


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """The MXFP4 matrices of all experts, as (experts, in, out). Index this object with an expert and a slice of output
    features to get a matrix that stays in the file."""

    name: str
    blocks: TensorBytes
    """The 4-bit numbers as bytes, (experts, out, in / 32, 16)."""
    scales: TensorBytes
    """The exponents as bytes, (experts, out, in / 32)."""
    shape: tuple[int, int, int]

    def __getitem__(self, index: Any) -> Any:
        is_cut = isinstance(index, tuple) and len(index) == 3 and index[1] is Ellipsis
        if not is_cut or not isinstance(index[0], int) or not isinstance(index[2], slice):
            return np.asarray(self)[index]
        count, wide, high = self.shape
        first, stop, step = index[2].indices(high)
        shape = (len(range(first, stop, step)), wide)
        begin = range(count)[index[0]] * high + first
        rows = functools.partial(mxfp4_rows, self.blocks, self.scales, wide, begin, step)
        return Mapped(self.blocks.path, self.name, shape, rows=rows).T

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.stack([np.asarray(self[expert, ..., :], dtype) for expert in range(self.shape[0])])


def load_experts(where: Mapping[str, Path], names: Collection[str], *, in_place: bool) -> dict[str, Any]:
    found = {name: _experts(where, name) for name in names}
    return dict(found) if in_place else {name: np.asarray(experts) for name, experts in found.items()}


def _experts(where: Mapping[str, Path], name: str) -> PackedExperts:
    stored = [_in_bytes(where[name + ending], name + ending) for ending in (NUMBERS, EXPONENTS)]
    blocks, scales = (tuple(each.shape) for each in stored)
    if len(blocks) != 4 or blocks[-1] != BLOCK // 2 or scales != blocks[:3]:
        raise CheckpointError(
            f"{shown(name + NUMBERS)} and {shown(name + EXPONENTS)} of {where[name + NUMBERS]} have the shapes "
            f"{shown(blocks)} and {shown(scales)}; expected (experts, out, in / {BLOCK}, {BLOCK // 2}), and the same "
            "shape without the last axis."
        )
    return PackedExperts(name, stored[0], stored[1], (blocks[0], blocks[2] * BLOCK, blocks[1]))


def _in_bytes(path: Path, name: str) -> TensorBytes:
    found = tensor_bytes(path, name)
    if found.dtype != "U8":
        raise CheckpointError(f"{shown(name)} of {path} has the dtype {found.dtype}; expected U8, the bytes of MXFP4.")
    return found


PIECE = 2**24

Progress = Callable[[str, int, int], None]


def headers(where: Mapping[str, Path]) -> dict[str, TensorBytes]:
    return {name: tensor_bytes(path, name) for name, path in where.items()}


def hashes(tensors: Mapping[str, TensorBytes], progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield the name and the sha256 of each tensor, file by file; raise `CheckpointError` if a file cannot be read."""
    files = list(dict.fromkeys(tensor.path for tensor in tensors.values()))
    for number, path in enumerate(files):
        progress(f"hashing {path.name}", number, len(files))
        yield from ((name, _sha256(tensor)) for name, tensor in tensors.items() if tensor.path == path)


def _sha256(tensor: TensorBytes) -> str:
    found = hashlib.sha256()
    for first in range(0, tensor.size, PIECE):
        count = min(PIECE, tensor.size - first)
        try:
            piece = tensor.read(first, count)
        except OSError as error:
            raise CheckpointError(f"{tensor.path} cannot be read: {reason(error)}.") from None
        if len(piece) < count:
            missing = count - len(piece)
            raise CheckpointError(f"{tensor.path} is truncated; expected {missing} more bytes: copy the file again.")
        found.update(piece.data)
    return found.hexdigest()
