"""The systems that an artefact is checked on: its checkpoint, as far as the artefact takes the calls.

What an artefact fixes is put into the configuration of the reference, so that no call goes beyond it; each such field
is a line of what is not compared.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checking.systems import System
from transparity_conformance.checkpoints.importing import Checkpoint
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.formatting import count
from transparity_conformance.running.loading import UsageError
from transparity_conformance.running.runtimes.runtime import Limits, runtime_of


def checkpoint_of(port: str | None, checkpoint: Path | None, *others: Any) -> Path | None:
    """The checkpoint of a check: a hub folder that is the port is its own, unless another is given."""
    runtime = runtime_of(port)
    if checkpoint is not None or port is None or runtime is None or runtime.needs_checkpoint or any(others):
        return checkpoint
    return Path(port)


def check_quantised(port: str, limits: Limits) -> None:
    """Raise `UsageError` for an artefact whose weights are quantised."""
    if limits.dtype == "int8":
        raise UsageError(
            f"{port} holds quantised weights: there is no budget for what that changes, so a mistake cannot be told "
            "from it; check the graph before it is quantised, or a GGUF file, whose numbers are compared."
        )


def artefact_system(checkpoint: Checkpoint, limits: Limits) -> System:
    """The checkpoint with its weights, within the limits."""
    config, parameters, lines = checkpoint.config, checkpoint.parameters, []
    for narrow in (_masked, _typed, _short):
        config, parameters, line = narrow(config, parameters, limits)
        lines += [line] if line else []
    if limits.batch is not None:
        lines.append(f"batches: it fixes {count(limits.batch, 'row')}, so other batches are run in such parts")
    dtype = limits.dtype if limits.dtype in HALF else None
    return System(checkpoint.model_type, config, parameters, dtype=dtype, not_compared=tuple(lines))


Narrowed = tuple[TransformerConfig, Arrays, str]


def _masked(config: TransformerConfig, parameters: Arrays, limits: Limits) -> Narrowed:
    """Mark padding by the mask that the artefact takes, or have none; positions that count tokens go by the token."""
    if config.reads_pixels or config.reads_frames:
        return config, parameters, ""
    if limits.has_mask:
        by_mask = (
            config if config.position_count == "visible" else dataclasses.replace(config, padding="attention-mask")
        )
        return by_mask, parameters, ""
    plain: dict[str, Any] = {"padding": "token", "pad_id": None, "target_mask": "causal"}
    return dataclasses.replace(config, **plain), parameters, "padding: it takes no attention_mask"


def _typed(config: TransformerConfig, parameters: Arrays, limits: Limits) -> Narrowed:
    """Without types of tokens among the inputs, the first is that of every token: it is a part of their embeddings."""
    if limits.has_token_types or not config.num_token_types:
        return config, parameters, ""
    stack = config.stacks[0]
    types, tokens = f"{stack}.token_type_embedding.weight", f"{stack}.token_embedding.weight"
    kept = {name: value for name, value in parameters.items() if name != types}
    kept[tokens] = parameters[tokens] + parameters[types][0]
    return dataclasses.replace(config, num_token_types=0), kept, "token types: it takes none, so all are the first"


def _short(config: TransformerConfig, parameters: Arrays, limits: Limits) -> Narrowed:
    """Sequences no longer than the length that the artefact fixes."""
    length = limits.length
    if length is None:
        return config, parameters, ""
    if config.has_encoder and not limits.has_mask and not config.reads_frames:
        raise UsageError(
            f"The graph fixes {count(length, 'token')} and takes no attention_mask, so no shorter sequence can be "
            "given to it; export it with its mask, or with a length that is free."
        )
    longest = min(length, config.max_length)
    audio = {"encoder.position_embedding.weight"} if config.reads_frames else set()
    tables = {name for name in parameters if name.endswith("position_embedding.weight")} - audio
    beyond = config.max_length - longest
    cut = {name: value[: len(value) - beyond] if name in tables else value for name, value in parameters.items()}
    line = f"lengths above {length}: it fixes {count(length, 'token')}; shorter sequences are padded on the right"
    return dataclasses.replace(config, max_length=longest), cut, line
