import functools
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen
from jax import lax
from tests.against.test_check import replaced

from transparity.errors import TransparityError
from transparity_conformance import check
from transparity_conformance.against.reference import MOST_BYTES, Kept
from transparity_conformance.against.references.held import Walk, arrays_of
from transparity_conformance.against.references.kinds import TracedReference, reference_of
from transparity_conformance.against.references.primitives import MEANINGS
from transparity_conformance.against.ways import calls
from transparity_conformance.running.loading import load_port

DECODERS = Path(__file__).parent / "decoders"

FRAMEWORKS = ("pytorch", "nnx", "numpy")

INPUTS = [
    {"tokens": np.random.default_rng(n).integers(0, 37, shape)} for n, shape in enumerate([(2, 7), (1, 1), (3, 12)])
]

REPLACED = tomllib.loads((DECODERS / "faults.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"embedding": (37, 24), "norm": (24,)}
    maps = {"query": (24, 24), "key": (24, 24), "value": (24, 24), "out": (24, 24), "gate": (24, 40), "up": (24, 40)}
    for layer in range(2):
        shapes |= {f"{layer}.{name}": shape for name, shape in (maps | {"down": (40, 24)}).items()}
        shapes |= {f"{layer}.norm": (24,), f"{layer}.norm2": (24,)}
    weights = {}
    for name, shape in shapes.items():
        noise = draw.standard_normal(shape)
        weights[name] = (1 + 0.3 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5).astype(np.float32)
    found = tmp_path_factory.mktemp("weights")
    np.savez(found / "weights.npz", **dict[str, Any](weights))
    return found


def text_of(framework: str) -> str:
    text = (DECODERS / f"decoder_{'numpy' if framework == 'nnx' else framework}.py").read_text(encoding="utf-8")
    return replaced(text, REPLACED["nnx"] if framework == "nnx" else ())


def decoder(framework: str, folder: Path, *, text: str = "", into: Path | None = None) -> Any:
    file = (into or folder) / f"{'port' if text else 'decoder'}_{framework}.py"
    file.write_text(text or text_of(framework), encoding="utf-8")
    return load_port(f"{file}:load")(str(folder))


@pytest.mark.parametrize("reference", FRAMEWORKS)
def test_right_ports_of_every_framework_agree(reference: str, folder: Path) -> None:
    theirs = decoder(reference, folder)
    for framework in FRAMEWORKS:
        report = check(decoder(framework, folder), against=theirs, inputs=INPUTS)
        assert (report.verdict, report.faults) == ("agrees", ()), framework


def row_of(fault: str, framework: str) -> tuple[str, str, int]:
    rows = REPLACED["faults"][fault]
    old, new = rows.get(framework) or rows["others"]
    lines = text_of(framework).splitlines()
    return old, new, next(number for number, line in enumerate(lines, 1) if old in line)


@pytest.mark.parametrize(
    ("fault", "port", "reference"),
    [
        ("number", "pytorch", "nnx"),
        ("function", "numpy", "nnx"),
        ("operand", "nnx", "pytorch"),
        ("mask", "pytorch", "numpy"),
        ("left out", "numpy", "pytorch"),
        ("number", "numpy", "numpy"),
        ("sign", "nnx", "numpy"),
    ],
)
def test_a_fault_is_told_with_the_lines_of_both_frameworks(
    fault: str, port: str, reference: str, folder: Path, tmp_path: Path
) -> None:
    old, new, line = row_of(fault, port)
    made = decoder(port, folder, text=text_of(port).replace(old, new), into=tmp_path)
    report = check(made, against=decoder(reference, folder), inputs=INPUTS)
    assert report.verdict == "diverges"
    found = report.faults[0]
    assert found.source is not None
    assert found.reference_source is not None
    lines = found.source["line"] - line, found.reference_source["line"] - row_of(fault, reference)[2]
    assert any(each in (0, 1) for each in lines), lines  # the wrong line, or the next one, which uses its result
    assert found.causes


EMBEDDING = jnp.asarray(np.random.default_rng(0).standard_normal((37, 12)), jnp.float32)
SQUARE = jnp.asarray(np.random.default_rng(1).standard_normal((12, 12)) / 4, jnp.float32)
KERNEL = jnp.asarray(np.random.default_rng(2).standard_normal((3, 12, 12)) / 4, jnp.float32)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_inputs_of_a_function_are_drawn_from_its_signature(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SECONDS", 60.0)  # JAX compiles each length
    fields = '{"model_type": "llama", "vocab_size": 37, "max_position_embeddings": 20}'
    (tmp_path / "config.json").write_text(fields, encoding="utf-8")
    table = EMBEDDING if framework == "jax" else torch.tensor(np.asarray(EMBEDDING))

    def load(folder: str) -> Any:
        return lambda input_ids: table[input_ids] * 2

    report = check(load, against=load, checkpoint=tmp_path)
    assert (report.verdict, report.coverage.lengths[-1]) == ("agrees", 20)


def with_scan(tokens: Any) -> Any:
    def turn(state: Any, x: Any) -> Any:
        state = jnp.tanh(state @ SQUARE + x)
        return state, state

    _, made = lax.scan(turn, jnp.zeros((len(tokens), 12)), EMBEDDING[tokens].swapaxes(0, 1))
    return made.swapaxes(0, 1)


def with_loop_and_branch(tokens: Any) -> Any:
    x = lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ SQUARE) + i, EMBEDDING[tokens])
    return lax.cond(x.shape[1] > 2, lambda x: x * 2, lambda x: -x, x)


def with_a_convolution(tokens: Any) -> Any:
    numbers = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(EMBEDDING[tokens], KERNEL, (1,), [(2, 0)], dimension_numbers=numbers)


def with_a_scatter(tokens: Any) -> Any:
    return jnp.zeros((len(tokens), 9, 12)).at[:, : tokens.shape[1]].add(EMBEDDING[tokens] @ SQUARE)


def with_chosen_experts(tokens: Any) -> Any:
    x = EMBEDDING[tokens]
    weights, chosen = lax.top_k(jax.nn.softmax(x @ SQUARE), 2)
    experts = jnp.stack([SQUARE, SQUARE.T] * 6)[chosen]
    return jnp.einsum("btkd,btk->btd", jnp.einsum("btd,btkde->btke", x, experts), weights) + jnp.cumsum(x, 1)


def with_rounding_and_parts(tokens: Any) -> Any:
    x = EMBEDDING[tokens]
    x = jax.checkpoint(lambda x: jax.nn.gelu(x @ SQUARE))(x) + jax.nn.relu(x)
    return jnp.take_along_axis(x, jnp.argsort(x, -1), -1) + jnp.roll(x, 1, 1) + jax.nn.log_softmax(x)


def with_primitives_that_jax_runs(tokens: Any) -> Any:
    x = EMBEDDING[tokens]
    y = lax.cumprod(jnp.tanh(x), 1) + lax.cummax(x, 1) + lax.cumlogsumexp(x, 2, reverse=True) + jnp.sort(x, 1)
    y = y * jnp.isfinite(x) + lax.erf_inv(0.9 * jnp.tanh(x)) + jnp.prod(jnp.tanh(x), (1, 2), keepdims=True)
    y = jnp.where((x > 0).any(1, keepdims=True) & (x > -9).all((1, 2), keepdims=True), y, 0)
    y = lax.dynamic_update_slice(y, x[:, :2], (0, jnp.argmax(tokens[0]) % 3, 0))
    y = y + lax.dynamic_slice(x, (0, 5, 0), (2, 7, 12)) + lax.cumsum(x, 1, reverse=True)
    return lax.select_n(jnp.broadcast_to(tokens[..., None] % 3, x.shape), y, -y, 2 * y)


JAX = [
    with_scan,
    with_loop_and_branch,
    with_a_convolution,
    with_a_scatter,
    with_chosen_experts,
    with_rounding_and_parts,
    with_primitives_that_jax_runs,
]

TOKENS = np.random.default_rng(3).integers(0, 37, (2, 7))


@pytest.mark.parametrize("function", JAX, ids=lambda function: function.__name__)
def test_a_program_of_jax_has_the_functions_answer_in_float64(function: Any) -> None:
    reference = reference_of("theirs", function)
    answer, budget = reference.answer({"tokens": TOKENS})
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: x.astype(jnp.float64), (EMBEDDING, SQUARE, KERNEL))
        names = dict(zip(("EMBEDDING", "SQUARE", "KERNEL"), exact, strict=True))
        before = {name: globals()[name] for name in names}
        globals().update(names)
        try:
            expected = np.asarray(function(jnp.asarray(TOKENS)))
        finally:
            globals().update(before)
    ulps = np.finfo(np.float64).eps / np.finfo(np.float32).eps
    assert expected.dtype == np.float64
    assert np.abs(answer - expected).max() <= budget * ulps
    program = reference.program({"tokens": TOKENS})
    assert torch.equal(program.run()[program.answer], program.values[program.answer])


class Linen(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.LayerNorm()(linen.Embed(37, 12)(tokens))
        x = x + linen.MultiHeadDotProductAttention(num_heads=3)(x, x, mask=linen.make_causal_mask(tokens))
        return linen.Dense(7)(linen.gelu(linen.Dense(20)(x)))


def test_modules_pairs_and_closures_are_references() -> None:
    table = np.random.default_rng(0).standard_normal((37, 12)).astype(np.float32)
    weight = torch.from_numpy(table[:12])
    pair: Any = (lambda parameters, tokens: parameters["table"][tokens] @ parameters["map"][0], {"map": (SQUARE,)})
    pair[1]["table"] = EMBEDDING
    made = {"linen": Linen(), "pair": pair, "closure": lambda tokens: torch.from_numpy(table)[tokens] @ weight}
    references = {name: reference_of(name, each) for name, each in made.items()}
    for each in references.values():
        assert np.isfinite(each.answer({"tokens": TOKENS})[1])
    assert {getattr(each, "framework", "") for each in references.values()} == {"jax", "torch"}
    names = {name.rpartition("params.")[2] for name in references["linen"].weights}
    assert {"Embed_0.embedding", "Dense_1.kernel"} <= names


def test_a_function_with_parameters_is_compared_at_the_lengths_that_it_takes() -> None:
    def far(parameters: Any, tokens: Any) -> Any:
        x = jnp.asarray(parameters["table"])[tokens]
        return x * jnp.minimum(jnp.arange(tokens.shape[1]), parameters["limit"])[:, None]

    def bound(limit: float) -> Any:
        return functools.partial(far, {"table": np.asarray(EMBEDDING), "limit": np.full(1, limit, np.float32)})

    assert check(bound(90), against=bound(90)).verdict == "agrees"
    assert check(bound(24), against=bound(90)).verdict == "diverges"


def test_an_array_keeps_its_place_after_a_walk() -> None:
    array = np.ones(3)
    held = {"a": [array, (array * 2,)]}
    walk = Walk(lambda _, value: value + 1)

    def function() -> Any:
        return held

    walk(function)
    assert np.array_equal(function()["a"][0], array + 1)
    walk.undo()
    assert function() is held
    assert [name for name, _ in arrays_of(function)] == ["held.a.0", "held.a.1.0"]


class Counting:
    def __init__(self) -> None:
        self.table, self.calls = EMBEDDING, 0

    def __call__(self, tokens: Any) -> Any:
        self.calls += 1
        return self.table[tokens] * self.calls


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Counting(), "cannot be recorded: its recorded operations"),
        (lambda tokens: jnp.asarray(EMBEDDING)[int(tokens[0, 0])], "cannot be recorded: it raised"),
        (7, "expected a module, or a function"),
    ],
)
def test_what_cannot_be_followed_is_an_error_and_no_verdict(made: Any, says: str) -> None:
    with pytest.raises(TransparityError, match=says) as raised:
        reference_of("theirs.py:load", made).answer({"tokens": TOKENS})
    assert "theirs.py:load" in str(raised.value)


def test_a_wrong_meaning_of_a_primitive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANINGS, "tanh", lambda x, **_: torch.sin(x))
    reference = reference_of("theirs", with_scan)
    assert isinstance(reference, TracedReference)
    with pytest.raises(TransparityError, match="cannot be recorded: its recorded operations"):
        reference.answer({"tokens": TOKENS})


def test_only_the_last_large_values_are_kept() -> None:
    kept = Kept[int, str]()
    for number in range(4):
        kept.put(number, f"value {number}", MOST_BYTES // 2)
    assert [kept.get(number) for number in range(4)] == [None, None, "value 2", "value 3"]
    kept.put(4, "larger than the memory", 2 * MOST_BYTES)
    assert [kept.get(number) for number in range(5)] == [None, None, None, None, "larger than the memory"]


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.norm(self.up(x))
        return answer


IN_TUPLES = """
import jax.numpy as jnp

def apply(tensors, x):
    (w, b), (mean, var, scale, shift) = tensors["up"], tensors["norm"]
    return (x @ w + b - mean) / jnp.sqrt(var + 1e-5) * scale + shift

def load():
    return apply, {"up": (jnp.ones((6, 8)), jnp.zeros(8)), "norm": tuple(jnp.ones(8) * n for n in (0, 1, 1, 0))}
"""


def test_statistics_of_a_batch_norm_are_copied_into_tuples(tmp_path: Path) -> None:
    (tmp_path / "in_tuples.py").write_text(IN_TUPLES, encoding="utf-8")
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    assert check(f"{tmp_path}/in_tuples.py:load", against=Normed, inputs=[{"x": x}]).verdict == "agrees"
