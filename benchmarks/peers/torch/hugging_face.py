"""Hugging Face's Marian (encoder-decoder) and GPT-2 (decoder), with PyTorch's fused attention.

No weights are tied, and no token ends a text. Learned positions replace Marian's sinusoidal positions.
"""

import torch
from benchmarks.peers.torch.tasks import tasks
from benchmarks.workloads import Run, Task
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, MarianMTModel

from transparity_conformance.checkpoints.exporting import fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called

FAMILIES = {"encoder-decoder": ("marian", MarianMTModel), "decoder": ("gpt2", GPT2LMHeadModel)}


class HuggingFace(nn.Module):
    """A Hugging Face model with the interface of the other peers. `generate` is the library's method, with a cache."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        name, kind = FAMILIES[task.config.architecture]
        family = family_called(name)
        fields = fields_of(name, family, task.config) | {"attn_implementation": "sdpa"}
        if name == "marian":
            fields |= dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), 0)
        self.model = kind(kind.config_class(**fields))
        tensors = tensors_in(family, task.config, task.parameters)
        self.model.load_state_dict({name: torch.tensor(value) for name, value in tensors.items()})

    def forward(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        given = {"input_ids": tokens} if source is None else {"input_ids": source, "decoder_input_ids": tokens}
        return self.model(**given, use_cache=False).logits

    def generate(self, prompt: Tensor, new_tokens: int) -> Tensor:
        return self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
        )


def build(task: Task) -> Run:
    return tasks(task, HuggingFace(task).to(task.device, getattr(torch, task.workload.dtype)).eval())
