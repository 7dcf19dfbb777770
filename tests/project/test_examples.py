"""Test the examples with small sizes: both frameworks have the same losses, and no held-out word is trained on."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib", reason="the examples' plot needs matplotlib")

from examples import character_loop, character_model, toy_translation
from examples.character_model import JAX, PYTORCH, TRAINING, Learned, learn, nudged
from examples.textbook.attention_is_all_you_need_pytorch import Transformer

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters
from transparity_pytorch.transformer import Transformer as Column

SMALL = {"max_length": 16, "embed_dim": 24, "num_heads": 3, "num_decoder_layers": 1}
STEPS = 12

CONTROLS, FURTHER = 3, 16
"""The number of control runs, and the limit for JAX as a multiple of the control runs' largest difference. A control
run is a run in PyTorch whose initial parameters differ from the first run's by one rounding. For the worst of 40 seeds
without XLA's slow passes, JAX's losses differed 7 times as much as any control run's."""


@pytest.fixture
def text() -> str:
    return character_model.paragraphs(character_model.TEXT.read_text(encoding="utf-8"))


@pytest.fixture
def characters(text: str) -> str:
    return character_model.characters_of(text)


@pytest.fixture
def small(characters: str) -> TransformerConfig:
    return character_model.config_for(characters, **SMALL)


@pytest.fixture
def batches(text: str, characters: str, small: TransformerConfig) -> list[dict[str, np.ndarray]]:
    return character_model.batches_of(character_model.encoded(text, characters), small, STEPS)


def distance(one: Learned, other: Learned) -> float:
    return float(np.abs(one.losses - other.losses).max())


def test_a_text_ships_that_is_long_enough_and_comes_back_from_its_tokens(text: str, characters: str) -> None:
    assert 20_000 < len(text) < 60_000
    tokens = character_model.encoded(text, characters)
    assert tokens.min() > 0, "0 is the id of padding and must not encode a character"
    assert character_model.decoded(tokens, characters) == text


def test_what_should_come_is_the_next_character(batches: list[dict[str, np.ndarray]]) -> None:
    for batch in batches:
        np.testing.assert_array_equal(batch["targets"][:, :-1], batch["tokens"][:, 1:])


def test_a_nudge_is_one_rounding(small: TransformerConfig) -> None:
    first = initialize_parameters(small)
    for name, value in nudged(first).items():
        assert (value != first[name]).all()
        np.testing.assert_array_equal(np.nextafter(value, first[name]), first[name])


def test_both_frameworks_learn_alike(
    small: TransformerConfig, batches: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = initialize_parameters(small)
    taken: list[bool] = []
    pytorch = learn(PYTORCH, small, first, batches, lambda: taken.append(True))
    jax = learn(JAX, small, first, batches)
    assert len(taken) == len(pytorch.losses) == len(jax.losses) == STEPS
    assert pytorch.losses[-3:].mean() < pytorch.losses[:3].mean()
    assert sorted(pytorch.parameters) == sorted(jax.parameters) == sorted(first)

    controls = [learn(PYTORCH, small, nudged(first, seed), batches) for seed in range(CONTROLS)]
    allowed = FURTHER * max(distance(control, pytorch) for control in controls)
    assert distance(jax, pytorch) <= allowed
    hasty = dataclasses.replace(TRAINING, learning_rate=1.001 * TRAINING.learning_rate)
    monkeypatch.setattr(character_model, "TRAINING", hasty)
    assert distance(learn(PYTORCH, small, first, batches), pytorch) > allowed, (
        "a learning rate that is 0.1 % too large must be detected"
    )


def test_the_same_draws_write_the_same_text(small: TransformerConfig, characters: str) -> None:
    first = initialize_parameters(small)
    written = [character_model.written(column, small, first, characters, count=20) for column in (PYTORCH, JAX)]
    assert written[0] == written[1]
    assert written[0].startswith(character_model.PROMPT)
    assert len(written[0]) == len(character_model.PROMPT) + 20


def test_the_character_model_runs_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(character_model, "SIZES", SMALL)
    monkeypatch.setattr(character_model, "WRITTEN", 20)
    character_model.main(steps=3, out=tmp_path / "new")
    assert (tmp_path / "new" / "character_model.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for said in ("before", "after", "PyTorch", "JAX", "changed by one rounding"):
        assert said in printed


def test_no_held_out_word_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two letters form 14 words of up to three letters. If half are held out, random batches would contain some.
    for name, value in {"LETTERS": "ab", "SHORTEST": 1, "LONGEST": 3}.items():
        monkeypatch.setattr(toy_translation, name, value)
    held_out = {"a", "bb", "aba", "abb", "bab", "ba", "aaa"}
    sources: list[torch.Tensor] = []
    model = small_translator()
    model.register_forward_pre_hook(lambda module, given: sources.append(given[0]))
    toy_translation.train(model, held_out, steps=20)
    trained = {word for source in sources for word in toy_translation.words_of(source)}
    assert len(sources) == 20
    assert len(trained) == 7
    assert not trained & held_out


def small_translator() -> Transformer:
    random.seed(0)
    torch.manual_seed(0)
    return Transformer(toy_translation.FIRST_LETTER + 26, d_model=32, heads=4, d_ff=128, layers=1, dropout=0)


def test_words_of_different_lengths_come_back_from_their_tokens() -> None:
    words = toy_translation.random_words(200)
    assert {len(word) for word in words} == set(range(toy_translation.SHORTEST, toy_translation.LONGEST + 1))
    assert toy_translation.words_of(toy_translation.tokens_of(words)) == words


def test_the_toy_translation_learns() -> None:
    lengths = range(toy_translation.SHORTEST, toy_translation.LONGEST + 1)
    unread = (np.mean(lengths) * np.log(26) + np.log(len(lengths))) / (np.mean(lengths) + 1)
    losses = toy_translation.train(small_translator(), steps=200)
    assert np.mean(losses[-10:]) < unread, (
        "the loss must be below the best loss of a model that does not read the source"
    )


@pytest.mark.parametrize(("right", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_enough_is_right(
    right: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        True: lambda model, words: [word[::-1] for word in words],
        False: lambda model, words: ["no"] * len(words),
    }
    monkeypatch.setattr(toy_translation, "train", lambda model, held_out: [])
    monkeypatch.setattr(toy_translation, "translate", answers[right])
    assert toy_translation.main() == code
    assert f"{1 - code:.1%} of 1000 new words" in capsys.readouterr().out


def test_the_column_learns_in_a_loop_of_plain_pytorch() -> None:
    torch.manual_seed(0)
    losses = character_loop.learn(Column(character_loop.LLAMA), 12)
    assert losses[-1] < losses[0]
