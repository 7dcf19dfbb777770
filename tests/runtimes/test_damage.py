import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.helpers import exported
from tests.runtimes.gguf_files import KINDS, write

from meta.alone import alone
from meta.fuzz.strategies import damaged, examples
from transparity.errors import TransparityError
from transparity_conformance.checking.gguf.checking import GgufCheck
from transparity_conformance.checking.gguf.metadata import keys_of, read_gguf
from transparity_conformance.checking.options import Options
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.diagnosis.judge import ignore_progress

STEPS = 2.0
"""The largest difference between quantized numbers that counts as rounding, in steps of the block's grid."""


def damage(random: Random, data: bytes) -> bytes:
    names = (b"attn_q", b"attn_k", b"attn_v", b"ffn_gat", b"ffn_up.")
    one, other = random.sample(names, 2)
    place = random.randrange(len(data))
    ways: list[Callable[[], bytes]] = [
        lambda: examples(damaged(data), 2, random.getrandbits(32))[-1],
        lambda: data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :],
        lambda: data.replace(one, b"x" * len(one) if random.random() < 0.3 else other[: len(one)]),
    ]
    return random.choice(ways)()


def difference(path: Path, original: Path, folder: Path) -> float:
    """Return the largest difference between a number and the original number, in steps of the block's grid; inf if
    metadata differ."""
    one, other, config = read_gguf(path), read_gguf(original), import_checkpoint(folder).config
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


def judged(path: Path, original: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the verdict of a check without a search for causes; if it is `agrees`, also the result of `difference`."""
    try:
        check = GgufCheck(Options(str(path), budget=0.0, logits_only=True, dtype="float32"))
        verdict = check(next(iter(check.systems(import_checkpoint(folder)))), ignore_progress).verdict
    except TransparityError:
        yield "refused", 0.0
    else:
        yield verdict, difference(path, original, folder) if verdict == "agrees" else 0.0


def test_damaged_files_that_agree_have_the_same_numbers(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Try some damaged files, or ten times as many with `--every-case`."""
    folder, original = tmp_path / "checkpoint", tmp_path / "model.gguf"
    exported("llama", folder, embed_dim=256, feed_forward_dim=256, num_decoder_layers=1)
    write("llama", folder, original, KINDS.Q4_0)
    assert list(judged(original, original, folder)) == [("agrees", 0.0)]
    for index in range(24 * (10 if pytestconfig.getoption("--every-case") else 1)):
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(damage(Random(f"1/{index}"), original.read_bytes()))
        with warnings.catch_warnings(action="ignore"):  # JAX warns of forks, but the child does not use JAX
            found, why = alone(get_context("fork"), 120, judged, path, original, folder)
        assert found is not None, f"file {index}: the check raised an exception, or ended its process {why}"
        assert found[0] in ("refused", "diverges", "inconclusive", "agrees"), (index, found)
        assert found[1] <= STEPS, (index, found)
