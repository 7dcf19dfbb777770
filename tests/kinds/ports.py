"""Correct ports. The rows of `kinds.toml` replace text in this file to make wrong ports."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.port import build as right


class Decoder:
    def __init__(self, config: TransformerConfig, parameters: dict[str, np.ndarray]) -> None:
        self.config, self.model = config, right(config, parameters)

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.logits(tokens=tokens))

    def step(self, tokens: np.ndarray, cache: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        every = np.asarray(tokens) if cache is None else np.concatenate([cache, tokens], axis=1)
        return self(every)[:, every.shape[1] - tokens.shape[1] :], every

    def generate(self, prompt: np.ndarray, steps: int) -> np.ndarray:
        tokens = np.asarray(prompt)
        for _ in range(steps):
            logits = self(tokens[:, -self.config.max_length :])[:, -1:]
            tokens = np.concatenate([tokens, logits.argmax(-1)], axis=1)
        return tokens


class Masked(Decoder):
    """A decoder with an attention mask, without steps or generation."""

    def __call__(self, tokens: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:  # type: ignore[override]
        hidden = np.asarray(attention_mask)
        return np.asarray(self.model.logits(tokens=tokens, attention_mask=hidden))

    step = generate = None  # type: ignore[assignment]


class Padded(Masked):
    """A decoder whose steps take the attention mask of their tokens."""

    def step(self, tokens: np.ndarray, cache: Any, attention_mask: np.ndarray) -> Any:  # type: ignore[override]
        size, given, mask = tokens.shape[1], cache or (tokens[:, :0], attention_mask[:, :0]), attention_mask
        every, seen = np.concatenate([given[0], tokens], 1), np.concatenate([given[1], mask], 1)
        return self(every, seen)[:, -size:], (every, seen)


class MaskedPast(Masked):
    """A decoder whose steps take the attention mask of all tokens so far."""

    def step(self, tokens: np.ndarray, cache: Any, attention_mask: np.ndarray) -> Any:  # type: ignore[override]
        every, size = [*(cache or []), tokens], tokens.shape[1]
        return self(np.concatenate(every, 1), attention_mask)[:, -size:], every


class Uncropped(Decoder):
    """A decoder that generates from all tokens, also beyond `max_length`."""

    def __init__(self, config: TransformerConfig, parameters: dict[str, np.ndarray]) -> None:
        super().__init__(dataclasses.replace(config, max_length=2000), parameters)


class Learner:
    def __init__(self, config: TransformerConfig, parameters: dict[str, np.ndarray]) -> None:
        from transparity_pytorch.port import build

        self.model = build(config, parameters)

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        logits: np.ndarray = self.model.logits(tokens=tokens)
        return logits

    def loss_and_gradients(self, targets: np.ndarray, tokens: np.ndarray) -> tuple[Any, dict[str, Any]]:
        loss, gradients = self.model.loss_and_gradients(targets, tokens=tokens)
        return loss, gradients


class Translator:
    def __init__(self, config: TransformerConfig, parameters: dict[str, np.ndarray]) -> None:
        self.config, self.model = config, right(config, parameters)

    def __call__(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        source, target = np.array(source), np.array(target)
        return np.asarray(self.model.logits(source=source, target=target))


def load(folder: str) -> Any:
    """Load a transformers model from all files of the folder."""
    import torch
    import transformers
    from safetensors.torch import load_file

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = transformers.AutoConfig.from_pretrained(folder)
            self.inner = getattr(transformers, config.architectures[0])(config).float()

        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, use_cache: Any = None) -> torch.Tensor:
            mask = attention_mask
            logits: torch.Tensor = self.inner(input_ids, attention_mask=mask).logits
            return logits

        def step(self, tokens: torch.Tensor, cache: Any, attention_mask: Any = None) -> Any:
            past, seen = cache or (None, tokens[:, :0])
            seen = torch.cat([seen, torch.ones_like(tokens) if attention_mask is None else attention_mask], 1)
            begin, given = seen.shape[1] - tokens.shape[1], seen
            places = torch.arange(begin, seen.shape[1]).expand_as(tokens)
            answer = self.inner(tokens, attention_mask=given, position_ids=places, past_key_values=past, use_cache=True)
            return answer.logits, (answer.past_key_values, seen)

        def packed(self, tokens: torch.Tensor, documents: torch.Tensor) -> Any:
            alike = documents[:, :, None] == documents[:, None, :]
            positions = alike.tril().sum(-1) - 1
            seen = alike if hasattr(self.inner, "distilbert") else alike.tril()
            return self.inner(tokens, attention_mask=seen[:, None], position_ids=positions)

    model = Model()
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors = {name: value.float() for name, value in load_file(file).items()}
        model.inner.load_state_dict(tensors, strict=False)
    return model.eval()


def load_latent(folder: str) -> Any:
    """Load a DeepSeek-V3, and set the scale of its scores: YaRN's factor, squared, over the root of the head size."""
    import math

    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    rope = model.config.rope_parameters
    for layer in model.model.layers:
        scale = 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1
        layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5 * scale * scale
    return model


def load_pooled(folder: str) -> Any:
    """Load a classifier that reads the last visible token's state."""
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = transformers.AutoModelForSequenceClassification.from_pretrained(folder)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.inner.model(input_ids, attention_mask=attention_mask).last_hidden_state
            last = (attention_mask * torch.arange(input_ids.shape[1])).argmax(1)
            logits: torch.Tensor = self.inner.score(states[torch.arange(len(states)), last])
            return logits

    return Model().eval()
