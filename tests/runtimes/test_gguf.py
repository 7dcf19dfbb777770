import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.helpers import exported
from tests.runtimes.conftest import Check, Hub
from tests.runtimes.gguf_files import KINDS, Change, permute, write

WIDE: dict[str, dict[str, Any]] = {
    "llama": {"embed_dim": 64, "feed_forward_dim": 96},
    "qwen3": {"embed_dim": 64, "feed_forward_dim": 96, "attention_head_dim": 32},
    "gpt2": {"embed_dim": 96, "feed_forward_dim": 384},
    "gemma2": {"embed_dim": 64, "feed_forward_dim": 96, "attention_head_dim": 16, "attention_multiplier": 0.25},
}
"""Sizes that can be quantized, because their rows are whole blocks."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    """Return a function that maps a family to the folder of its model, in sizes that can be quantized."""
    root = tmp_path_factory.mktemp("wide")
    for family, sizes in WIDE.items():
        exported(family, root / family, **sizes)
    return root.joinpath


@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16, KINDS.BF16, KINDS.Q8_0, KINDS.Q5_1, KINDS.Q4_0])
@pytest.mark.parametrize("family", WIDE)
def test_a_right_file_agrees_however_it_is_quantised(
    family: str, kind: Any, wide: Hub, check: Check, tmp_path: Path
) -> None:
    checked = check(write(family, wide(family), tmp_path / "model.gguf", kind), "--checkpoint", wide(family))
    assert checked.exit_code == 0, checked.errors
    assert any(note.startswith("quantization alone") for note in checked.report["notes"]) == (kind != KINDS.F32)


def taken(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def changed(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.ascontiguousarray(change(tensors[name]))

    return changed


def swapped(one: str, other: str) -> Change:
    return lambda tensors: tensors.update({one: tensors[other], other: tensors[one]})


GATE, UP, UP_1 = "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight"
KEYS, OUTPUT, NORM = "blk.1.attn_k.weight", "blk.0.attn_output.weight", "blk.1.attn_norm.weight"
HEAD, EMBEDDING = "output.weight", "token_embd.weight"
GROUPS = "llama.attention.head_count_kv"
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("llama", {"steps": {"permuted": False}}, "gguf-not-converted", "blk.0.attn_q.weight"),
    ("llama", {"rope_freq_base": 500.0}, "gguf-metadata", "llama.rope.freq_base"),
    ("llama", {"rope_freq_base": None, "attention_head_count_kv": None}, "gguf-metadata", GROUPS),
    ("llama", {"attention_layer_norm_rms_epsilon": 1e-3}, "gguf-metadata", "llama.attention.layer_norm_rms_epsilon"),
    ("llama", {"context_length": None}, "gguf-metadata", "llama.context_length"),
    ("llama", {"attention.causal": False}, "gguf-metadata", "llama.attention.causal"),
    ("llama", {"rope.scale_linear": 4.0}, "gguf-metadata", "llama.rope.scaling"),
    ("llama", {"rope.scaling.attn_factor": 1.2}, "gguf-metadata", "llama.rope.scaling.attn_factor"),
    ("qwen3", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "gguf-metadata", "qwen3.rope.scaling"),
    ("qwen3", {"attention_value_length": None}, "gguf-metadata", "qwen3.attention.value_length"),
    ("llama", {"change": lambda tensors: tensors.pop(HEAD)}, "gguf-tensor-missing", HEAD),
    ("llama", {"change": swapped(GATE, UP)}, "gguf-tensor-swapped", GATE),
    ("llama", {"change": taken(UP, lambda value: 2 * value)}, "gguf-scaled", UP),
    ("qwen3", {"change": taken(KEYS, lambda value: permute(value, 2))}, "gguf-rows-permuted", KEYS),
    ("gemma2", {"steps": {"offset": False}}, "gguf-not-converted", "blk.0.attn_norm.weight"),
    ("gemma2", {"attn_logit_softcapping": None}, "gguf-metadata", "gemma2.attn_logit_softcapping"),
    ("gemma2", {"attention_sliding_window": 7}, "gguf-metadata", "gemma2.attention.sliding_window"),
    ("gpt2", {"change": taken(OUTPUT, np.transpose)}, "gguf-not-converted", OUTPUT),
    ("gpt2", {"change": taken(NORM, lambda value: value + 1)}, "gguf-norm-offset", NORM),
    ("gpt2", {"change": taken(EMBEDDING, lambda value: value[:-1])}, "gguf-shape", EMBEDDING),
    ("gpt2", {"attention_layer_norm_epsilon": None}, "gguf-metadata", "gpt2.attention.layer_norm_epsilon"),
    ("gpt2", {"change": swapped(UP, UP_1)}, "gguf-tensor-swapped", UP),
    ("gpt2", {"change": lambda t: t.update({HEAD: t[EMBEDDING][::-1].copy()})}, "head-tied", HEAD),
]


@pytest.mark.parametrize(("family", "how", "cause", "where"), WRONG, ids=[f"{each[0]}-{each[2]}" for each in WRONG])
def test_a_wrong_file_diverges_by_its_cause_under_quantisation(
    family: str, how: dict[str, Any], cause: str, where: str, wide: Hub, check: Check, tmp_path: Path
) -> None:
    path = write(family, wide(family), tmp_path / "model.gguf", KINDS.Q4_0, **how)
    checked = check(path, "--checkpoint", wide(family))
    assert checked.exit_code == 1, checked.errors
    assert set(checked.causes) == {cause}
    assert checked.report["first_divergence"] == where


YARN: dict[str, Any] = {
    "rotary_scaling": "yarn",
    "rotary_factor": 4.0,
    "rotary_original_length": 8,
    "rotary_fast_turns": 32.0,
}
AS_YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 8,
}


@pytest.mark.parametrize("key", [None, "rope.scaling", "rope.scaling.original_context_length"])
def test_a_file_has_the_yarn_of_its_checkpoint(key: str | None, check: Check, tmp_path: Path) -> None:
    exported("qwen3", tmp_path / "hub", rotary_attention_factor=1 + 0.1 * math.log(4), **YARN)
    wrong: dict[str, Any] = {None: {}, "rope.scaling": {"rope.scaling.factor": 2.0}}.get(key, {str(key): None})
    path = write("qwen3", tmp_path / "hub", tmp_path / "model.gguf", **AS_YARN | wrong)
    checked = check(path, "--checkpoint", tmp_path / "hub")
    assert checked.exit_code == (1 if key else 0), checked.errors
    assert checked.report["first_divergence"] == (key and f"qwen3.{key}")


def test_a_part_of_a_split_file_is_refused(wide: Hub, check: Check, tmp_path: Path) -> None:
    path = write("llama", wide("llama"), tmp_path / "model-00001-of-00002.gguf", parts=2)
    checked = check(path, "--checkpoint", wide("llama"))
    assert checked.exit_code == 2
    assert checked.last_line.endswith(": the file is one of 2 parts; join the parts with llama-gguf-split --merge.")


def test_quantisation_is_told_from_the_mistakes_of_a_conversion(wide: Hub, check: Check, tmp_path: Path) -> None:
    right, wrong = (
        check(
            write("llama", wide("llama"), tmp_path / "model.gguf", KINDS.Q4_0, steps={"permuted": permuted}),
            *("--checkpoint", wide("llama")),
        )
        for permuted in (True, False)
    )
    (alone,) = right.report["notes"]
    again, mistakes = wrong.report["notes"]
    assert alone.startswith("quantization alone changes the logits by up to ")
    assert again == alone
    assert mistakes.startswith("the combination of all faults changes the logits by up to ")


def test_one_wrong_row_is_found_though_no_mistake_explains_it(wide: Hub, check: Check, tmp_path: Path) -> None:
    def change(value: np.ndarray) -> np.ndarray:
        value[5] = np.roll(value[5], 1)
        return value

    path = write("llama", wide("llama"), tmp_path / "model.gguf", KINDS.Q4_0, taken(UP, change))
    checked = check(path, "--checkpoint", wide("llama"), "--budget", 0)
    assert (checked.exit_code, checked.report["first_divergence"]) == (1, UP)


def damaged(path: Path, name: str, change: Callable[[bytearray], None]) -> Path:
    """Change the second block of a Q4_0 tensor. A block has a scale of 2 bytes, then 16 bytes with two numbers each."""
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == name)
    start = int(tensor.data_offset) + 18
    data = bytearray(path.read_bytes())
    block = data[start : start + 18]
    change(block)
    data[start : start + 18] = block
    path.write_bytes(bytes(data))
    return path


def flip(block: bytearray) -> None:
    block[2] ^= 4


def without_scale(block: bytearray) -> None:
    block[:2] = b"\0\0"


@pytest.mark.parametrize(("change", "cause"), [(flip, {"gguf-disorder"}), (without_scale, set())])
def test_damage_in_one_block_is_not_taken_for_quantisation(
    change: Callable[[bytearray], None], cause: set[str], check: Check, tmp_path: Path
) -> None:
    folder, path = tmp_path / "hub", tmp_path / "model.gguf"
    exported("llama", folder, embed_dim=512, num_heads=8, feed_forward_dim=32, num_decoder_layers=1)
    write("llama", folder, path, KINDS.Q4_0)
    assert check(path, "--checkpoint", folder).exit_code == 0
    checked = check(damaged(path, UP, change), "--checkpoint", folder, "--budget", 0)
    assert checked.exit_code == 1
    assert checked.report["first_divergence"] == UP
    assert set(checked.causes) == cause


@pytest.fixture(scope="module")
def right(wide: Hub, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write("llama", wide("llama"), tmp_path_factory.mktemp("right") / "model.gguf", KINDS.Q8_0).read_bytes()


HUGE = struct.pack("<Q", 2**60)
MANY = f"the file declares {2**60:,} items; expected at most {2**22:,}"
SHORT = "the file is shorter than its header and its tensors require"
ARRAY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 4, 2**60)
BROKEN: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda data: b"", "cannot mmap an empty file"),
    (lambda data: data[:-100], SHORT),
    (lambda data: data[:200], SHORT),
    (lambda data: b"GGML" + data[4:], "GGUF magic invalid"),
    (lambda data: data[:4] + b"\x09\0\0\0" + data[8:], "Sorry, file appears to be version 9 which we cannot handle"),
    (lambda data: data[:4] + b"\0\0\0\x03" + bytes(16) + data[24:], "its byte order is big-endian"),
    (lambda data: data[:8] + HUGE + data[16:], MANY),
    (lambda data: data[:16] + HUGE + data[24:], MANY),
    (lambda data: data[:24] + HUGE + data[32:], SHORT),
    (lambda data: ARRAY + bytes(100), MANY),
]


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=[f"{i}" for i in range(len(BROKEN))])
def test_a_corrupt_file_is_one_sentence(
    change: Callable[[bytes], bytes], message: str, right: bytes, wide: Hub, check: Check, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(change(right))
    checked = check(path, "--checkpoint", wide("llama"))
    assert checked.exit_code == 2
    assert checked.last_line == f"{path} cannot be read as a GGUF file: {message}."


def test_a_file_of_another_architecture_is_refused(wide: Hub, check: Check, tmp_path: Path) -> None:
    path = write("gpt2", wide("gpt2"), tmp_path / "model.gguf")
    checked = check(path, "--checkpoint", wide("llama"))
    assert checked.exit_code == 2
    assert checked.last_line.startswith(f"{path} has the architecture 'gpt2'; expected 'llama'")


def test_a_grid_bounds_what_the_library_quantises_and_keeps_its_order() -> None:
    from transparity_conformance.checking.gguf.rounding import BITS, disorder, step, worst_block

    random = np.random.default_rng(0)
    for drawn in (random.normal(size=(64, 512)), random.standard_t(2, (64, 512))):
        values = drawn.astype(np.float32)
        for kind in set(BITS) & {KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1, KINDS.Q8_0}:
            found, steps = gguf.dequantize(gguf.quantize(values, kind), kind), step(values, kind)
            assert steps is not None
            error, allowed = worst_block(found, values, steps, kind)
            assert error <= allowed, kind.name
            assert disorder(found, values, kind) == 0, kind.name
