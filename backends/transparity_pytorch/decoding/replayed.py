"""Generation with two CUDA graphs: one graph for the prompt, and one that is replayed for each later token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transparity.sampling import Sampling
from transparity_pytorch.decoding.generation import allocate, append_token, generate
from transparity_pytorch.decoding.steps import Step, cache_for, next_logits, step
from transparity_pytorch.fast import graphs
from transparity_pytorch.shapes import GeneratedIds, TokenIds
from transparity_pytorch.transformer import Transformer


class ReplayedGeneration:
    """A `generate` for GPUs that records the kernels of its second step, and replays the recording for later steps.

    The second consecutive call with the same shapes also records the processing of the prompt. Later calls replay both
    recordings. The recordings keep the tokens and the cache between calls, so only one thread at a time may use them.
    If there is too little memory for a recording, kernels are launched one by one.
    """

    def __init__(self) -> None:
        self.replayed = graphs.Replayed(_run, _prepare)

    @torch.no_grad()
    def __call__(
        self,
        model: Transformer,
        prompt: TokenIds,
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        step: Step = step,
        **others: Tensor | None,
    ) -> GeneratedIds:
        """Return the same result as `generate`."""
        config = model.config
        options: dict[str, Any] = {"sampling": sampling or Sampling(), "step": step, **others}
        if not (max_new_tokens and config.prefixes_agree and prompt.shape[1] <= config.max_length):
            return generate(model, prompt, max_new_tokens, **options)  # without a cache
        return self.replayed(model, {"prompt": prompt, "max_new_tokens": max_new_tokens, **options})


class Generation:
    """The tensors of a generation that has added the first token; each later step changes these tensors in place."""

    def __init__(
        self,
        model: Transformer,
        max_new_tokens: int,
        sampling: Sampling,
        step: Step,
        prompt: Tensor,
        lengths: Tensor | None = None,
        source: Tensor | None = None,
        uniforms: Tensor | None = None,
    ) -> None:
        self.model, self.sampling, self.step, self.source, self.uniforms = model, sampling, step, source, uniforms
        self.first, self.max_new_tokens = prompt.shape[1], max_new_tokens
        self.written = allocate(model.config, prompt, lengths, max_new_tokens)
        self.begin = self.written.lengths.clone()
        self.cache = cache_for(model, self.written.tokens, self.first, source)
        self.add(self.cache, self.first)

    def add(self, cache: Any, new: int) -> None:
        tokens, lengths, _ = self.written
        logits = next_logits(self.model, tokens, lengths, cache, self.source, new, self.step)
        # The number of the step is computed from the lengths, because a graph has no arguments.
        drawn = self.uniforms
        drawn = None if drawn is None else drawn.take_along_dim((lengths - self.begin)[:, None], dim=1)[:, 0]
        append_token(self.model.config, logits, self.written, drawn, self.sampling)

    def add_next(self) -> None:
        self.add(self.cache, 1)

    def end(self, following: Callable[[], None]) -> Tensor:
        """Call `following` for each remaining token; beyond `max_length` tokens, decode without the cache. Return all
        tokens."""
        config, longest = self.model.config, self.first + 1
        while longest < self.first + self.max_new_tokens:
            if config.eos_id is not None and self.written.ended.all():
                break
            following() if longest <= config.max_length else self.add(None, 1)
            longest += 1
        return self.written.tokens[:, :longest].clone()


def _recorded_after_one(change: Callable[[], None]) -> Callable[[], None]:
    """Return a function that first runs `change`, then records it and replays the recording, if memory allows."""
    runs: list[Callable[[], None]] = []

    def again() -> Callable[[], None]:
        try:
            return graphs.recorded(change)
        except torch.cuda.OutOfMemoryError:
            return change

    def run() -> None:
        if len(runs) < 2:
            runs.append(again() if runs else change)
        runs[-1]()

    return run


def _run(model: Transformer, given: dict[str, Any]) -> Tensor:
    begun = Generation(model, **given)
    return begun.end(_recorded_after_one(begun.add_next))


def _prepare(model: Transformer, given: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    """Return a function that processes the prompt, and a function that adds the remaining tokens."""
    begun: list[Generation] = []

    def start() -> None:
        begun[:] = [Generation(model, **given)]

    def add_next() -> None:
        begun[0].add_next()

    following = _recorded_after_one(add_next)
    return start, lambda: begun[0].end(following)
