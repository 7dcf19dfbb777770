"""IBM's Foundation Model Stack, with its own loader of Hugging Face folders."""

from typing import Any

import torch
from fms.models import get_model


def load(folder: str) -> Any:
    model = get_model("hf_pretrained", model_path=str(folder), data_type="float32").eval()

    def step(tokens: Any, cache: Any) -> tuple[torch.Tensor, Any]:
        tokens = torch.as_tensor(tokens)
        seen = 0 if cache is None else cache[0][0].shape[2]
        mask = torch.ones(tokens.shape[1], seen + tokens.shape[1], dtype=torch.bool).tril(seen)
        positions = torch.arange(seen, seen + tokens.shape[1]).expand(tokens.shape)
        with torch.no_grad():
            return model(tokens, positions, cache, use_cache=True, mask=mask[None].expand(len(tokens), -1, -1))

    model.step = step
    return model
