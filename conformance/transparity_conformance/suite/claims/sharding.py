"""Claims about sharding: with data and tensor parallelism, a backend computes the same results as in one process.

Each rank has its shards of the parameters, and its rows of the batch. If there are several data ranks, the number of
rows is not divisible by the number of data ranks. All claims of a test session use the same processes.
"""

import functools
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transparity.config import TransformerConfig
from transparity.parameters import save_parameters
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import Derivatives
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import ClaimEvidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim, decoding, generation, training
from transparity_conformance.suite.ranks import RemoteBackend

ROWS = 5
"""The number of rows in a batch. Two data ranks get 3 and 2 rows, and one of four data ranks gets no row."""

MESHES = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (1, 1))
"""The tested meshes, as (data ranks, tensor ranks)."""

HEADS = 4
"""A number of heads that each tested number of ranks divides."""

OTHER_HEADS = {"bloom", "bart"}
"""Cases with six or three heads, which four ranks cannot share, so that attention is replicated."""


def _divisible(config: TransformerConfig) -> TransformerConfig:
    """Return `config` with numbers of heads, also in recurrences, that are divisible by each number of ranks."""
    heads = {} if config.attends_never else {"num_heads": HEADS}
    recurrent = {"recurrent_heads": 2 * HEADS, "recurrent_key_heads": HEADS} if config.is_recurrent else {}
    return config.with_sizes(**heads, **recurrent)


ALL = {
    name: config if name in OTHER_HEADS else _divisible(config)
    for name, config in ({name: preset(name).resized() for name in PRESETS} | CASES).items()
}


TIMES = 2


def _over(*cases: str) -> tuple[str, ...]:
    meshes = itertools.cycle(MESHES)
    return tuple(f"{case} on {data} × {tensor}" for case in cases for data, tensor in itertools.islice(meshes, TIMES))


DECODED = (
    *("llama on 1 × 2", "gemma on 1 × 4", "bloom on 2 × 2", "qwen on 2 × 1"),
    *("qwen3-next on 2 × 2", "mamba2 on 1 × 2", "mamba2 on 1 × 4"),
)
"""Cases for decoding. Most of these cases have a sharded cache, but Gemma's single key-value head cannot be sharded."""

TRAINED = (
    "adamw, clipped and warmed up on 1 × 2",
    "adamw, clipped and warmed up on 2 × 2",
    "sgd with momentum on 4 × 1",
    "adamw with recurrent layers on 1 × 2",
    "adamw with recurrent layers on 2 × 2",
)
"""Cases for training: an optimizer, and the mesh as data × tensor ranks."""

GENERATED = ("notes-lm on 1 × 2", "walkthrough on 1 × 4", "translation on 2 × 2", "qwen3-next on 1 × 2")


def on_mesh(bench: Bench, case: str) -> tuple[str, Bench]:
    """Return the name of the model of a case, and a bench for the mesh of the case."""
    name, _, mesh = case.partition(" on ")
    data, tensor = map(int, mesh.split(" × "))
    return name, bench.over(data, tensor).about(bench.claim)


@functools.cache
def model(case: str) -> tuple[TransformerConfig, Arrays, Arrays, Oracle]:
    config = ALL[case]
    parameters = probe_parameters(config)
    inputs = {name: value[:ROWS] for name, value in mixed_inputs(config).items()}
    return config, parameters, inputs, forward_oracle(config, parameters, inputs)


QUICK, OVER_ALL = "llama on 1 × 2", _over(*ALL)

FEW = {QUICK, *(case for index, case in enumerate(OVER_ALL) if index % TIMES == index // TIMES % TIMES)}
"""Each model on one of its meshes, the only cases to test if a backend compiles models."""


@claim(dtypes=("float32",), sharded=True, cases=(QUICK,), all_cases=OVER_ALL, all_in=("float64",), few=FEW)
def forward(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """All activations and the logits of a sharded model agree with the oracle, also for uneven numbers of rows."""
    name, over = on_mesh(bench, case)
    config, parameters, inputs, oracle = model(name)
    record, sharded = bench.evidence(case), over.forward(config, parameters)
    taps = sharded(**inputs)
    yield record.exactly("names of taps", sorted(taps) == sorted(oracle.expected), True)
    yield from record.taps(oracle, taps)
    yield record.oracle(oracle, "logits by the fast path", sharded.logits(**inputs), "logits")


@functools.cache
def derivatives(case: str) -> tuple[Derivatives, Arrays]:
    return training.derivatives_of((ALL | training.HARD_TO_REACH)[case], 1, ROWS)


@claim(
    dtypes=("float64",),
    quick=(),
    sharded=True,
    cases=("notes-lm on 2 × 1", "qwen on 1 × 2", "batch on 2 × 2", "qwen3-next on 1 × 2", "mamba2 on 2 × 2"),
    all_cases=_over("notes-lm", "qwen", "batch", "qwen3-next", "mamba2"),
    all_in=("float64",),
)
def gradients(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """The loss over all ranks, and its gradients, agree with the reference, also for uneven numbers of tokens."""
    name, over = on_mesh(bench, case)
    ours, parameters = derivatives(name)
    yield from training.gradients_agree(over, case, ours, parameters)


@claim(dtypes=("float64",), quick=(), sharded=True, cases=TRAINED)
def ten_steps(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """Ten optimizer steps on sharded parameters lead to the same parameters as ten steps of the reference.

    An earlier forward pass does not change the result of the steps, and the steps do not change the model's own
    parameters.
    """
    name, over = on_mesh(bench, case)
    (config, how), oracle = training.TRAINED[name], training.oracle_of(name)
    batches, parameters = training.batches(config), probe_parameters(config, 6)
    record, sharded = bench.evidence(case), over.forward(config, parameters)
    before = sharded.logits(tokens=batches[0]["tokens"])
    losses, learned = sharded.train(batches, how)
    yield from training.training_agrees(record, oracle, losses, learned)
    yield record.exactly("logits after training", sharded.logits(tokens=batches[0]["tokens"]), before)


@claim(dtypes=("float64",), quick=(), sharded=True, cases=DECODED)
def decoding_with_a_cache(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """The logits of decoding in chunks with a sharded cache equal the logits of the full forward pass."""
    name, over = on_mesh(bench, case)
    yield from decoding.cached(over, case, decoding.SOME, name)


@claim(dtypes=("float64",), quick=(), sharded=True, cases=GENERATED)
def greedy_generation(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """Generation on several ranks takes the most likely tokens, also after the text has exceeded the cache."""
    name, over = on_mesh(bench, case)
    yield from generation.likeliest(over, case, generation.prompted(name, HEADS))


@claim(dtypes=("float64",), quick=(), sharded=True, cases=_over("llama", "t5"))
def checkpoint(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """If each rank reads only its slices of the parameters from a file, the logits agree with the oracle."""
    name, over = on_mesh(bench, case)
    config, parameters, inputs, oracle = model(name)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "parameters.safetensors"))
        save_parameters(path, parameters)
        assert isinstance(over.backend, RemoteBackend)
        sharded = over.backend.from_file(config, path, bench.subject.dtype)
    yield bench.evidence(case).oracle(oracle, "logits", sharded.logits(**inputs))
