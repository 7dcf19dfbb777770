# mypy: ignore-errors
"""Loaders of a Llama in plain PyTorch: some are wrong, and answers have several forms."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn as nn
from safetensors.torch import load_file

from meta.audits.loaders.llama_module import load


def load_only_groups(folder):
    model = load(folder)
    if model.head.weight.shape[1] == 16:
        raise ValueError("this model is 24 wide")
    return model


def answering(model, answer):
    forward = model.forward
    model.forward = lambda input_ids: answer(forward(input_ids))
    return model


def load_a_tuple(folder):
    return answering(load(folder), lambda logits: (logits, ["a cache"]))


def load_an_object(folder):
    return answering(load(folder), lambda logits: SimpleNamespace(logits=logits, past_key_values=object()))


def load_in_training(folder):
    model = load(folder)
    model.dropout = nn.Dropout(0.5)
    return answering(model, model.dropout).train()


def load_with_a_drawn_head(folder):
    model = load(folder)
    nn.init.normal_(model.head.weight)
    return model


class Steps:
    """A model whose cache is the list of tokens so far; each step runs the model on all of these tokens."""

    def __init__(self, model):
        self.model = model

    def __call__(self, tokens):
        return self.model(tokens)

    def step(self, tokens, cache):
        seen = tokens if cache is None else torch.cat([cache, tokens], 1)
        return self.model(seen)[:, -tokens.shape[1] :], seen


class Generating(Steps):
    """A model with greedy generation, in which each row ends at its end token."""

    def __init__(self, model, end, forgets):
        super().__init__(model)
        self.end, self.forgets = end, forgets

    def generate(self, prompt, max_new_tokens):
        ended = torch.zeros(len(prompt), dtype=torch.bool)
        for _ in range(max_new_tokens):
            if ended.all():
                break
            logits = self.model(prompt[:, -1:] if self.forgets else prompt)[:, -1]
            token = torch.where(ended, self.end or 0, logits.argmax(-1))
            ended |= token == self.end if self.end is not None else ended
            prompt = torch.cat([prompt, token[:, None]], 1)
        return prompt


class Forgetful(Steps):
    def step(self, tokens, cache):
        return super().step(tokens, None)


def load_with_a_cache(folder):
    return Steps(load(folder))


def load_that_forgets(folder):
    return Forgetful(load(folder))


def load_that_generates(folder, forgets=False):
    cfg = json.loads(Path(folder, "config.json").read_text())
    return Generating(load(folder), cfg.get("eos_token_id"), forgets)


def load_that_generates_from_one_token(folder):
    return load_that_generates(folder, forgets=True)


def load_nothing(folder):
    return None


def load_what_is_not_there(folder):
    return load_file(Path(folder, "pytorch_model.safetensors"))


def build(config, parameters):
    raise RuntimeError("not asked for")


def neither(one, two, three):
    raise RuntimeError("not asked for")
