"""A decoder in CTranslate2. Encoder-decoders are left out, because CTranslate2 returns no logits for them."""

import os
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from benchmarks.workloads import Run, Task
from ctranslate2.specs import TransformerDecoderModelSpec, common_spec

from transparity.config import TransformerConfig
from transparity.protocol import Arrays

NEVER = "<never>"
"""The name of the start and end tokens: no token of a workload has this name, so decoding never stops early."""


def specification(config: TransformerConfig, parameters: Arrays) -> Any:
    """Return the model as a CTranslate2 specification, with query, key and value in one matrix."""
    spec = TransformerDecoderModelSpec.from_config(
        config.num_decoder_layers,
        config.num_heads,
        pre_norm=config.norm_position == "pre",
        activation=common_spec.Activation.RELU,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = parameters["decoder.token_embedding.weight"]
    decoder.position_encodings.encodings = parameters["decoder.position_embedding.weight"]
    _norm(decoder.layer_norm, parameters, "decoder.final_norm")
    _linear(decoder.projection, parameters, "head")
    for index, layer in enumerate(decoder.layer):
        at = f"decoder.layers.{index}"
        roles = [f"{at}.self_attention.{role}" for role in ("query", "key", "value")]
        _linear(layer.self_attention.linear[0], parameters, *roles)
        _linear(layer.self_attention.linear[1], parameters, f"{at}.self_attention.output")
        _norm(layer.self_attention.layer_norm, parameters, f"{at}.self_attention_norm")
        _linear(layer.ffn.linear_0, parameters, f"{at}.feed_forward.up")
        _linear(layer.ffn.linear_1, parameters, f"{at}.feed_forward.down")
        _norm(layer.ffn.layer_norm, parameters, f"{at}.feed_forward_norm")
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = NEVER
    spec.register_vocabulary([*map(str, range(config.vocab_size))])
    return spec


def _linear(spec: Any, parameters: Arrays, *scopes: str) -> None:
    spec.weight = np.concatenate([parameters[f"{scope}.weight"] for scope in scopes])
    spec.bias = np.concatenate([parameters[f"{scope}.bias"] for scope in scopes])


def _norm(spec: Any, parameters: Arrays, scope: str) -> None:
    spec.gamma, spec.beta = parameters[f"{scope}.weight"], parameters[f"{scope}.bias"]


def build(task: Task) -> Run:
    """Build the run in float32: greedy decoding, or the logits of a whole sequence."""
    folder = Path(task.folder, "ctranslate2")
    folder.mkdir(exist_ok=True)
    spec = specification(task.config, task.parameters)
    spec.validate()
    spec.save(str(folder))
    threads = int(os.environ["OMP_NUM_THREADS"])
    generator = ctranslate2.Generator(str(folder), intra_threads=threads, compute_type="float32")
    if task.workload.kind == "forward":
        tokens = task.inputs["tokens"].tolist()
        return lambda: np.asarray(generator.forward_batch(tokens))
    prompt, new_tokens = task.inputs["tokens"], task.workload.new_tokens
    texts = [[*map(str, row)] for row in prompt.tolist()]

    def run() -> np.ndarray:
        written = generator.generate_batch(
            texts,
            max_length=new_tokens,
            min_length=new_tokens,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return np.hstack([prompt, [result.sequences_ids[0] for result in written]])

    return run
