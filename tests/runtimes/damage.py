# mypy: ignore-errors
"""Damage artifacts, and check each in its own process, which may crash.

If a damaged artifact agrees, it is compared with the original. The logits of every token, or the numbers of a quantized
file, may differ only by rounding.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import transformers  # noqa: F401 - imported once, and not in every process
from safetensors.numpy import load, save
from tests.helpers import exported
from tests.runtimes.gguf_files import KINDS as TYPES
from tests.runtimes.gguf_files import write

from meta.fuzz.strategies import damaged, examples
from transparity.errors import TransparityError
from transparity_conformance.checking.check import check
from transparity_conformance.checking.gguf.checking import GgufCheck
from transparity_conformance.checking.gguf.metadata import keys_of, read_gguf
from transparity_conformance.checking.options import Options
from transparity_conformance.checking.systems import artefact_system
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.diagnosis.judge import ignore_progress
from transparity_conformance.running.artefacts import runtime_of
from transparity_conformance.running.loading import load_artefact

ROUNDING = 1e-5
"""The largest difference that counts as rounding, as a share of the largest logit."""

STEPS = 2.0
"""The largest change of a quantized number that counts as rounding, in steps of its block's grid."""


@functools.cache
def right(kind: str, root: Path) -> tuple[Path, Path]:
    """Create a correct artifact; return it and its checkpoint."""
    sizes = {"embed_dim": 256, "feed_forward_dim": 256, "num_decoder_layers": 1} if kind == "gguf" else {}
    folder = root / f"{kind}-checkpoint"
    exported("llama", folder, **sizes)
    if kind == "gguf":
        return write("llama", folder, root / "model.gguf", TYPES.Q4_0), folder
    return folder, folder


def damage(kind: str, random: Random, source: Path, target: Path) -> Path:
    if kind == "folder":
        shutil.copytree(source, target)
        path = target / random.choice(("model.safetensors", "model.safetensors", "config.json"))
        source = source / path.name
    else:
        path = target
    data = source.read_bytes()
    ways: list[Callable[[], bytes]] = [
        lambda: examples(damaged(data), 2, random.getrandbits(32))[-1],
        lambda: _flipped(random, data),
    ]
    ways += [lambda: _renamed(kind, random, data)] if path.suffix != ".json" else []
    path.write_bytes(random.choice(ways)())
    return target


def _flipped(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def _renamed(kind: str, random: Random, data: bytes) -> bytes:
    if kind == "gguf":
        one, other = random.sample((b"attn_q", b"attn_k", b"attn_v", b"ffn_gat", b"ffn_up."), 2)
        return data.replace(one, b"x" * len(one)) if random.random() < 0.3 else data.replace(one, other[: len(one)])
    tensors = load(data)
    one, other = random.sample(sorted(tensors), 2)
    value = tensors.pop(one)
    return save({**tensors, one: tensors[other], other: value} if random.random() < 0.6 else tensors)


def verdict_on(path: Path, folder: Path) -> str:
    """Return the verdict of a check, without a search for causes."""
    checkpoint = import_checkpoint(folder)
    options: dict[str, Any] = {"budget": 0.0, "logits_only": True, "dtype": "float32"}
    if path.suffix == ".gguf":
        of_file = GgufCheck(Options(str(path), **options))
        return of_file(next(iter(of_file.systems(checkpoint))), ignore_progress).verdict
    model = load_artefact(str(path), runtime_of(str(path)))
    system = artefact_system(checkpoint, model.limits)
    return check(model, system.name, config=system.config, parameters=system.parameters, **options).verdict


def difference(path: Path, original: Path, folder: Path) -> float:
    """Return the largest difference from the original for any token, as a share of the largest logit."""
    if path.suffix == ".gguf":
        return _of_files(path, original, folder)
    config = import_checkpoint(folder).config
    size, length = config.target_vocab_size, config.max_length
    tokens = np.stack([np.roll(np.arange(size), shift)[:length] for shift in range(size)])
    mask = np.random.default_rng(0).random(tokens.shape) < 0.8
    mask[:, 0] = True
    every = []
    for each in (path, original):
        forward = load_artefact(str(each), runtime_of(str(each)))(config, {})
        calls = [forward(tokens=tokens), forward(tokens=tokens, attention_mask=mask.astype(np.int64))]
        found = [torch.as_tensor(getattr(call, "logits", call)).numpy() for call in calls]
        every.append(np.stack([found[0], np.where(mask[..., None], found[1], 0)]))
    return float(np.abs(every[0] - every[1]).max() / np.abs(every[1]).max())


def _of_files(path: Path, original: Path, folder: Path) -> float:
    """Return the largest difference of a number, in steps of its block's grid, or inf if metadata differ."""
    one, other = read_gguf(path), read_gguf(original)
    config = import_checkpoint(folder).config
    for key in keys_of(config, other.architecture):
        default = key.default(config) if callable(key.default) else key.default
        fields = [default if each.field(key.name) is None else each.field(key.name) for each in (one, other)]
        if fields[0] != fields[1]:
            return float("inf")
    if set(one.tensors) != set(other.tensors):
        return float("inf")
    found = 0.0
    for name, tensor in other.tensors.items():
        theirs, ours = one.tensors[name].numbers().reshape(-1, 32), tensor.numbers().reshape(-1, 32)
        steps = np.abs(ours).max(axis=1, keepdims=True) / 8
        found = max(found, float((np.abs(theirs - ours) / steps).max()))
    return found


def judged(path: Path, original: Path, folder: Path) -> dict[str, Any]:
    try:
        verdict = verdict_on(path, folder)
    except TransparityError as error:
        return {"what": "refused", "sentence": str(error)}
    found = {"what": verdict}
    if verdict == "agrees":
        is_same = path.is_file() and path.read_bytes() == original.read_bytes()
        found["difference"] = 0.0 if is_same else difference(path, original, folder)
    return found


def in_a_process(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a forked process, which may crash."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks, but the child does not use JAX
        child = os.fork()
    if child == 0:
        try:
            result = run()
        except BaseException:  # noqa: BLE001 - that nothing else is raised is what is looked for
            result = {"what": "raised", "sentence": traceback.format_exc()}
        os.write(writing, json.dumps(result).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    content = b"".join(iter(lambda: os.read(reading, 2**16), b""))
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return json.loads(content) if content else {"what": f"died ({status})"}
