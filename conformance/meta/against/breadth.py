"""Measure how many classes of transformers are built small and run: `python -m meta.against.breadth [--only WORD]`.

Each class is built from its default configuration in a process with limits. It has to run in float32 and in float64,
where no float is narrower, and the two have to agree.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import re
import resource
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers.models.auto import modeling_auto

from transparity_conformance.against.small.build import build, example_inputs, part_of

SECONDS, BYTES = 60, 12 << 30
"""The limits of one class."""

TOLERANCE = 1e-4
"""The largest error of float32, relative to the largest number of the float64 output."""

KINDS = {
    "decoder": ("CAUSAL_LM",),
    "encoder": ("MASKED_LM",),
    "encoder-decoder": ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"),
    "vision": ("IMAGE_CLASSIFICATION", "IMAGE"),
    "audio": ("AUDIO_CLASSIFICATION", "CTC"),
    "image-text": ("IMAGE_TEXT_TO_TEXT",),
}
"""Auto mappings of transformers, `MODEL_FOR_…_MAPPING_NAMES`, by kind of model."""

STAGES = ("listed", "exists", "builds", "runs", "exact")
"""How far a class comes. It exists if its default configuration builds it, without weights."""

LACKING: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000.0}},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
}
"""Fields that every published configuration has and the default one lacks."""

SHAPED = {"nonzero", "masked_select", "unique", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
"""Operations whose results have a shape that depends on numbers."""

NARROW = {torch.float32, torch.bfloat16, torch.float16}


class Exact(TorchDispatchMode):
    """Computes in float64 where the model asks for a narrower float.

    Attributes:
        shaped: the operations that were called whose results have a shape that depends on numbers.
    """

    shaped: frozenset[str] = frozenset()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_widened, (args, kwargs or {}))
        if "softmax" in str(func) and len(args) > 2 and args[2] is True:  # half_to_float
            args = (*args[:2], False)
        if func.overloadpacket.__name__ in SHAPED:
            self.shaped |= {func.overloadpacket.__name__}
        return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def classes(kinds: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the model type and the name of each class."""
    for kind in kinds:
        seen = set()
        for mapping in KINDS[kind]:
            for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").items():
                name = names if isinstance(names, str) else names[0]
                if (model_type, name) not in seen:
                    seen.add((model_type, name))
                    yield kind, model_type, name


def configured(model_type: str, name: str = "") -> Any:
    """Return the default configuration with what it lacks for a class."""
    return transformers.CONFIG_MAPPING[model_type](**LACKING.get(model_type, LACKING.get(name, {})))


def exists(model_type: str, name: str) -> bool:
    """Return whether a class can be built from its default configuration."""
    try:
        made = getattr(transformers, name)
        with torch.device("meta"):
            made(part_of(configured(model_type, name), made))
    except Exception:  # noqa: BLE001 - any failure says no
        return False
    return True


def outputs(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the floating tensors that a forward pass returns."""
    with torch.no_grad():
        return [x for x in tree_leaves(dict(model(**inputs))) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def measured(model_type: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the answer so far after each stage."""
    answer: dict[str, Any] = {"stage": "exists", "reason": ""}
    yield answer
    model = build(configured(model_type, name), getattr(transformers, name))
    inputs = {key: torch.from_numpy(value) for key, value in example_inputs(model).items()}
    parameters = sum(each.numel() for each in model.parameters())
    answer |= {"stage": "builds", "parameters": parameters, "inputs": list(inputs)}
    yield answer
    narrow = outputs(model, inputs)
    answer |= {"stage": "runs"}
    yield answer
    torch.set_default_dtype(torch.float64)
    with Exact() as exact:  # type: ignore[no-untyped-call]
        wide = outputs(
            copy.deepcopy(model).double(), {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        )
    errors = [_error(*pair, inputs.get("attention_mask")) for pair in zip(narrow, wide, strict=True)]
    if any(each.dtype != torch.float64 for each in wide):
        raise ArithmeticError("an output of the float64 run is not float64")
    if not errors or not max(errors) < TOLERANCE:
        raise ArithmeticError(f"float32 differs from float64 by {max(errors, default=0.0):.1e}")
    yield answer | {"stage": "exact", "error": max(errors), "shaped": sorted(exact.shaped)}


def _error(narrow: torch.Tensor, wide: torch.Tensor, mask: torch.Tensor | None) -> float:
    if mask is not None and wide.shape[:2] == mask.shape:  # what is computed of padding means nothing
        narrow, wide = narrow[mask > 0], wide[mask > 0]
    if not wide.isfinite().all() or wide.numel() == 0:
        return float("inf")
    return float((narrow - wide).abs().max() / wide.abs().max().clamp(min=1e-30))


def _alone(model_type: str, name: str, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    answer: dict[str, Any] = {}
    try:
        for answer in measured(model_type, name):
            pipe.send(answer)
    except Exception as error:  # noqa: BLE001 - any failure of a class is its answer
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        frames = traceback.extract_tb(error.__traceback__)
        if answer.get("stage") == "exists" and any(each.name == "example_inputs" for each in frames):
            answer |= {"stage": "builds"}
        elif answer.get("stage") == "exists" and not exists(model_type, name):
            answer |= {"stage": "listed"}
        frame = next((each for each in reversed(frames) if "modeling_" in each.filename), frames[-1])
        text = re.sub(r"\s+", " ", str(error))[:160]
        pipe.send(answer | {"reason": f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"})


def answer_of(model_type: str, name: str) -> dict[str, Any]:
    """Return how far a class came, in a process with limits of time and memory."""
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_alone, args=(model_type, name, theirs))
    began, answer = time.monotonic(), {"stage": "listed", "reason": "killed"}
    process.start()
    theirs.close()
    try:
        while ours.poll(max(0.0, began + SECONDS - time.monotonic())):
            answer = ours.recv()
        answer["reason"] = f"more than {SECONDS} s"
    except EOFError:
        if answer["stage"] != "exact" and not answer["reason"]:
            answer["reason"] = "killed"
    process.kill()
    process.join()
    return answer | {"seconds": round(time.monotonic() - began, 1)}


def table(found: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """One row for each kind: how many classes reach each stage."""
    shown = Table("kind", *STAGES, "share", title="Classes of transformers that are built small")
    for kind in dict.fromkeys(kind for kind, _ in found):
        reached = Counter(STAGES.index(answer["stage"]) for each, answer in found if each == kind)
        counts = [sum(reached[later] for later in range(stage, len(STAGES))) for stage in range(len(STAGES))]
        shown.add_row(kind, *map(str, counts), f"{counts[-1] / max(counts[1], 1):.1%}")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all classes of the chosen kinds, print a line for each failure, and the table."""
    parser = argparse.ArgumentParser(description="Measure how many classes of transformers are built small and run.")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="*", default=[], metavar="TYPE", help="only these model types")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer, too")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    transformers.LlamaForCausalLM  # noqa: B018 - imports what all processes need
    console, found = Console(width=240, highlight=False), []
    for kind, model_type, name in classes(options.kinds):
        if options.only and model_type not in options.only:
            continue
        answer = answer_of(model_type, name)
        found.append((kind, answer))
        if answer["stage"] != "exact" or options.only:
            console.print(f"{kind} {model_type} {name}: {answer}", soft_wrap=True, markup=False)
        if options.json:
            with options.json.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"kind": kind, "type": model_type, "class": name} | answer) + "\n")
    console.print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
