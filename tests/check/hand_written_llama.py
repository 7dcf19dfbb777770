# mypy: ignore-errors
"""Loaders of a Llama in plain PyTorch: some are wrong, and some models return a tuple or an object."""

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
    model.forward = lambda text, tokens=None: answer(forward(text))  # `tokens` is another input, as in TransformerLens
    return model


def load_a_tuple(folder):
    return answering(load(folder), lambda logits: (logits, ["a cache"]))


def load_an_object(folder):
    return answering(load(folder), lambda logits: SimpleNamespace(logits=logits, past_key_values=object()))


def load_in_training(folder):
    model = load(folder)
    model.dropout = nn.Dropout(0.5)
    return answering(model, model.dropout).train()


class Steps:
    """A model whose cache is the list of tokens so far; each step runs the model on all of these tokens."""

    def __init__(self, model):
        self.model = model

    def __call__(self, tokens):
        return self.model(tokens)

    def step(self, tokens, cache):
        seen = tokens if cache is None else torch.cat([cache, tokens], 1)
        return self.model(seen)[:, -tokens.shape[1] :], seen


class Forgetful(Steps):
    def step(self, tokens, cache):
        return super().step(tokens, None)


def load_with_a_cache(folder):
    return Steps(load(folder))


def load_that_forgets(folder):
    return Forgetful(load(folder))


def load_nothing(folder):
    return None


def load_what_is_not_there(folder):
    return load_file(Path(folder, "pytorch_model.safetensors"))


def build(config, parameters):
    raise RuntimeError("not asked for")


def neither(one, two, three):
    raise RuntimeError("not asked for")
