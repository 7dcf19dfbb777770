"""A model is fitted in the form that it has: a function over a module, flax, NumPy, with settings and targets."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fitting.test_fit import GPT, small_gpt
from torch import Tensor, nn

from meta.adapting import arrays
from meta.fitting.drawn import module
from transparity.config import TransformerConfig
from transparity_conformance.capabilities.stranger import PortError
from transparity_conformance.identify.fitting.fit import fit, fit_port

ARRAYS = dataclasses.replace(GPT, pad_id=None, norm_eps=1e-5)


def same(made: TransformerConfig, config: TransformerConfig, *besides: str) -> bool:
    return dataclasses.replace(made, **{name: getattr(config, name) for name in besides}) == config


def test_a_function_over_a_module_is_fitted() -> None:
    def port() -> Callable[..., Tensor]:
        model = small_gpt().GPT()
        return lambda ids: model(ids)[0]

    assert same(fit(port).config, ARRAYS)


def test_the_mode_of_a_module_behind_a_function_is_put_back() -> None:
    model = small_gpt().GPT().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(lambda: lambda ids: model(ids)[0])
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_module_that_calls_its_parts_by_a_closure_is_fitted() -> None:
    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_gpt().GPT()
            inner = self.inner
            self.run: Any = lambda ids: inner(ids)[0]

        def forward(self, ids: Tensor) -> Tensor:
            return self.run(ids)

    assert same(fit(Closed()).config, ARRAYS)


def test_without_targets_only_the_last_position_has_logits() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_gpt().GPT()

        def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, None]:
            logits, _ = self.inner(idx)
            return (logits if targets is not None else logits[:, [-1]]), None

    assert same(fit(Last).config, ARRAYS)


def test_a_place_in_the_sequence_is_no_target() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_gpt().GPT()

        def forward(self, tokens: Tensor, start_pos: int) -> Tensor:
            assert start_pos == 0
            return self.inner(tokens)

    assert same(fit(Cached).config, ARRAYS)


def test_keys_that_are_made_before_queries_are_told_apart() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.query, self.value, self.out = (nn.Linear(24, 24) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            k, q, v = (each(x).view(*x.shape[:2], 3, -1).transpose(1, 2) for each in (self.key, self.query, self.value))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    model = small_gpt().GPT()
    for block in model.h:
        block.attn = Attention()
    assert same(fit(model).config, dataclasses.replace(ARRAYS, mask_value=-np.inf), "mask_order")


@pytest.mark.long
def test_heads_and_rows_one_at_a_time_in_numpy_are_put_together() -> None:
    made = fit(functools.partial(arrays.pico, GPT))
    assert made.is_confirmed
    assert same(made.config, dataclasses.replace(ARRAYS, mask_value=made.config.mask_value), "mask_order")


@pytest.mark.long
def test_a_module_of_nnx_is_fitted() -> None:
    pytest.importorskip("flax")
    made = fit(functools.partial(arrays.flax, GPT))
    assert made.is_confirmed
    assert same(made.config, ARRAYS, "mask_value", "mask_order")


def linen() -> Any:
    from flax import linen

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: Any, *, train: bool) -> Any:
            import jax
            import jax.numpy as jnp

            (b, t, d), norm = x.shape, functools.partial(linen.LayerNorm, epsilon=1e-5)
            q, k, v = (
                each.reshape(b, t, 3, -1).transpose(0, 2, 1, 3)
                for each in jnp.split(linen.Dense(3 * d)(norm()(x)), 3, -1)
            )
            scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(-1, -2) / (d // 3) ** 0.5, -jnp.inf)
            y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, d)
            x = x + linen.Dropout(0.1, deterministic=not train)(linen.Dense(d)(y))
            return x + linen.Dense(d)(linen.gelu(linen.Dense(40)(norm()(x))))

    class GPTOfLinen(linen.Module):
        @linen.compact
        def __call__(self, idx: Any, *, train: bool, targets: Any = None) -> Any:
            import jax.numpy as jnp

            embed = linen.Embed(53, 24)
            x = embed(idx) + linen.Embed(40, 24)(jnp.arange(idx.shape[1]))
            for _ in range(2):
                x = Block()(x, train=train)
            return embed.attend(linen.LayerNorm(epsilon=1e-5)(x)), targets

    return GPTOfLinen()


@pytest.mark.long
def test_a_module_of_linen_is_initialised_and_fitted() -> None:
    pytest.importorskip("flax")
    made = fit(linen)
    assert made.is_confirmed
    assert same(made.config, ARRAYS, "mask_value", "mask_order")


@pytest.mark.long
def test_the_longest_input_that_is_answered_is_its_length() -> None:
    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module(dataclasses.replace(GPT, positions="rotary"))

        def forward(self, tokens: Tensor) -> Tensor:
            assert tokens.shape[1] <= 37
            return self.inner(tokens)

    assert fit(Short).config.max_length == 37


def test_a_port_that_ends_the_process_is_told_in_one_sentence(tmp_path: Any) -> None:
    file = tmp_path / "ends.py"
    file.write_text("import os\n\ndef port():\n    os._exit(7)\n")
    with pytest.raises(PortError, match="The port's process ended with the exit code 7"):
        fit_port(f"{file}:port")


def test_more_inputs_than_a_source_and_a_target_are_asked_to_be_wrapped() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)

        def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
            return self.embed(src) + self.embed(tgt) + src_mask

    with pytest.raises(PortError, match=r"\(src, tgt, src_mask\).*return a function"):
        fit(Three)


def test_norms_of_several_eps_are_told() -> None:
    model = small_gpt().GPT()
    model.ln_f.eps = 1e-3
    made = fit(model)
    assert not made.is_confirmed
    assert made.remarks == ("decoder.final_norm has the eps 0.001, not 1e-05",)


def test_padding_that_is_masked_in_the_rows_of_scores_is_told() -> None:
    class Attention(nn.Module):
        def __init__(self, of: Any) -> None:
            super().__init__()
            self.inner: Any = of
            self.is_padding = torch.zeros(1, 1, dtype=torch.bool)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each.unflatten(-1, (3, -1)).transpose(1, 2) for each in self.inner.c_attn(x).split(24, 2))
            scores = q @ k.transpose(-2, -1) / 8**0.5
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) | self.is_padding[:, None, :, None]
            y = scores.masked_fill(hidden, -1e4).softmax(-1) @ v
            return self.inner.c_proj(y.transpose(1, 2).flatten(2))

    class Port(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_gpt().GPT()
            for block in self.inner.h:
                block.attn = Attention(block.attn)

        def forward(self, tokens: Tensor) -> Tensor:
            for block in self.inner.h:
                block.attn.is_padding = tokens == 5
            return self.inner(tokens)[0]

    made = fit(Port)
    assert not made.is_confirmed
    assert (made.config.pad_id, made.config.target_mask) == (5, "causal-and-padding")
    assert made.remarks == (
        "The decoder masks the token 5 as a query, not as a key: rows of scores instead of columns",
    )


def test_a_module_whose_maps_are_frozen_is_fitted() -> None:
    model = small_gpt().GPT()
    for parameter in model.parameters():
        parameter.requires_grad = parameter.ndim < 2
    assert same(fit(model).config, ARRAYS)


@pytest.mark.long
def test_positions_that_are_scaled_are_refused_with_the_factor() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * 0.25

    model = small_gpt().GPT()
    model.wpe = Scaled(40, 24)
    with pytest.raises(PortError, match=r"wpe\.weight are multiplied by 0\.25 before they are added"):
        fit(model)


def test_a_module_in_half_precision_is_fitted_in_double() -> None:
    assert same(fit(small_gpt().GPT().bfloat16()).config, ARRAYS)


def test_a_module_that_is_half_precision_throughout_is_told_to_be_made_in_another() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(53, 24).bfloat16(), nn.Linear(24, 53).bfloat16()

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.embed(tokens).bfloat16())

    with pytest.raises(PortError, match="make it with dtype float32"):
        fit(Half)
