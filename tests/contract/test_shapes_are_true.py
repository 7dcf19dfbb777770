import ast
from pathlib import Path

import jaxtyping
import pytest
from tests.helpers import run_python
from tests.looping import for_each

from transparity.axes import LEGEND

ROOT = Path(__file__).parents[2]
COLUMNS = ["reference/transparity_numpy", "backends/transparity_pytorch", "backends/transparity_flax"]


def words(source: str) -> set[str]:
    """Return every dimension name in types such as `Float[Array, "batch length"]`."""
    dimensions: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Name(id=kind), slice=ast.Tuple(elts=[_, ast.Constant(value=str(shape))])):
                dimensions |= {word.lstrip("*#") for word in shape.split()} if hasattr(jaxtyping, kind) else set()
    return {word for word in dimensions if not word.isdigit() and word != "..."}


def words_of_column(column: str) -> set[str]:
    return set().union(*(words(file.read_text()) for file in (ROOT / column).rglob("*.py")))


@for_each("column", COLUMNS)
def test_every_dimension_is_in_the_legend(column: str) -> None:
    found = words_of_column(column)
    assert "embed_dim" in found, "no shapes were found"
    assert found <= set(LEGEND)


def test_the_legend_has_no_word_that_no_shape_uses() -> None:
    assert set(LEGEND) <= set().union(*map(words_of_column, COLUMNS))


PACKAGES = {"numpy": "transparity_numpy", "pytorch": "transparity_pytorch", "flax": "transparity_flax"}
CHECKED = """
import sys
from importlib import import_module

import numpy as np
from jaxtyping import TypeCheckError, install_import_hook

_, package, every = sys.argv
with install_import_hook(package, "beartype.beartype"):
    build = import_module(f"{package}.port").build
    harness = import_module(f"{package}.harness")
"""

WRONG_SHAPES = """
split_heads, scores = (harness.function(f"mixers.attention.{name}") for name in ("split_heads", "attention_scores"))
query, key, other = (np.ones(shape, np.float32) for shape in [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)])
assert split_heads(np.ones((2, 3, 4), np.float32), 2).shape == (2, 2, 3, 2)
assert scores(query, key, 1.0).shape == (2, 3, 5, 7)
wrong = {
    "an axis too few": lambda: split_heads(np.ones((3, 4), np.float32), 2),
    "tokens for floats": lambda: split_heads(np.ones((2, 3, 4), np.int64), 2),
    "two sizes of head_dim": lambda: scores(query, other, 1.0),
}
for what, call in wrong.items():
    try:
        call()
    except TypeCheckError:
        continue
    sys.exit(f"{what}: not caught")
"""

EVERY_FORWARD = """
import dataclasses
from transparity import PRESETS, initialize_parameters, preset
from transparity.sampling import Sampling
from transparity_conformance.oracle.cases import CASES

presets = [preset(name).resized(num_encoder_layers=1, num_decoder_layers=1) for name in PRESETS]
lone_encoder = dataclasses.replace(presets[0], architecture="encoder")
batch_norm = dataclasses.replace(presets[1], norm="batch")
chosen = list(CASES.values())[:: int(every)]
cases = [dataclasses.replace(case, num_encoder_layers=1, num_decoder_layers=1) for case in chosen]
random = np.random.default_rng(0)
for config in [*presets, lone_encoder, batch_norm, *cases]:
    tokens = {
        name: random.integers(3, config.stack_vocab_size(config.input_stack(name)), (2, length))
        for name, length in zip(config.input_names, (7, 5))
    }
    given = tokens | {name: random.integers(0, 2, (2, 7)) for name in config.further_inputs}
    forward = build(config, initialize_parameters(config), mode=build.modes[0])
    assert "logits" in forward(**given)
    forward.logits(**given)
    if config.head == "logits":
        forward.loss(tokens[config.input_names[-1]], **given)

for config in (presets[0], presets[1], presets[4]):
    forward = build(config, initialize_parameters(config), mode=build.modes[0])
    prompt, source = np.array([[3, 4], [5, 6]]), np.array([[3, 4, 5], [6, 7, 8]]) if config.has_encoder else None
    for uniforms in (None, random.random((2, 2))):
        assert forward.generate(prompt, 2, source=source, uniforms=uniforms).shape[0] == 2
        assert forward.beam_search(prompt, 2, 3, source=source)[0].shape[0] == 2
    if config.mask_is_exact:
        sampling = Sampling(0.7, 5, 0.9)
        forward.generate(prompt, 2, lengths=[1, 2], source=source, uniforms=random.random((2, 2)), sampling=sampling)
        said, cache = forward.step(prompt, source=source, valid_lengths=[2, 1])
        forward.step(prompt[:, :1], cache)
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("backend", PACKAGES)
def test_wrong_shapes_are_caught_and_every_shape_holds_in_every_preset(backend: str, every: int) -> None:
    """Test wrong and right shapes in one process, because right shapes also pass if the check is disabled."""
    process = run_python("-c", CHECKED + WRONG_SHAPES + EVERY_FORWARD, PACKAGES[backend], every)
    assert process.returncode == 0, process.stderr
