"""Claims that the reference agrees with other libraries, whose code is independent of the reference.

The reference computes in float64, and differences must be within the oracle's budget.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance.oracle.oracle import Arrays, Oracle, function_oracle
from transparity_conformance.oracle.probes import probe_parameters, scoped_parameters
from transparity_conformance.report.comparison import ClaimEvidence, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_conformance.suite.claims.attention import scored
from transparity_conformance.suite.claims.layers import BATCH, KEYS, QUERIES, module_oracle
from transparity_numpy.harness import module as reference_module

CONFIG = dataclasses.replace(preset("translation").resized(), attention_scale="head_dim", mask_value=-1e9)

FLOAT32_SOFTMAX = "this implementation always computes its softmax in float32"


def part(config: TransformerConfig, scope: str) -> Arrays:
    return scoped_parameters(probe_parameters(config, 10), scope)


def activations(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, length, CONFIG.embed_dim)).astype(np.float32)


def padding(length: int) -> np.ndarray:
    mask = np.ones((BATCH, 1, 1, length), bool)
    mask[1, ..., -2:] = False
    return mask


def _tensor(value: Any) -> Any:
    import torch

    return torch.tensor(value, dtype=torch.float64 if np.asarray(value).dtype.kind == "f" else None)


def _packed(parameters: Arrays, scope: str) -> dict[str, Any]:
    packed = {}
    for kind in ("weight", "bias"):
        roles = [parameters[f"{scope}{role}.{kind}"] for role in ("query", "key", "value")]
        packed[f"in_proj_{kind}"] = _tensor(np.concatenate(roles))
        packed[f"out_proj.{kind}"] = _tensor(parameters[f"{scope}output.{kind}"])
    return packed


def _torch_layer(kind: str, config: TransformerConfig, parameters: Arrays) -> Any:
    import torch

    layer = getattr(torch.nn, kind)(
        config.embed_dim,
        config.num_heads,
        config.feed_forward_dim,
        0.0,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm_position == "pre",
        dtype=torch.float64,
    ).eval()
    attentions = {"self_attn": "self_attention.", "multihead_attn": "cross_attention."}
    norms = ["self_attention_norm", "cross_attention_norm", "feed_forward_norm"]
    if "Encoder" in kind:
        del attentions["multihead_attn"], norms[1]
    state = {f"{name}.{key}": v for name, scope in attentions.items() for key, v in _packed(parameters, scope).items()}
    renamed = {"linear1": "feed_forward.up", "linear2": "feed_forward.down"}
    renamed |= {f"norm{index}": norm for index, norm in enumerate(norms, 1)}
    leaves = itertools.product(renamed.items(), ("weight", "bias"))
    state |= {f"{theirs}.{leaf}": _tensor(parameters[f"{ours}.{leaf}"]) for (theirs, ours), leaf in leaves}
    layer.load_state_dict(state)
    return layer


def _agrees(
    bench: Bench, case: str, oracle: Oracle, theirs: Any, dtype: str = "float64", note: str = ""
) -> ClaimEvidence:
    record = bench.evidence(case)
    budget = oracle.budget("result", dtype)
    return record.within("result", oracle.expected["result"], as_numbers(theirs), budget, note=note)


of_reference = functools.partial(claim, dtypes=("float64",), of_reference=True)


@of_reference(needs=("torch",))
def torch_multihead_attention(bench: Bench) -> Iterator[ClaimEvidence]:
    """Output and weights of `torch.nn.MultiheadAttention` agree with the reference, with padding or a causal mask."""
    import torch

    parameters = part(CONFIG, "encoder.layers.0.self_attention")
    theirs = torch.nn.MultiheadAttention(CONFIG.embed_dim, CONFIG.num_heads, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(_packed(parameters, ""))
    x, memory = activations(QUERIES, 1), activations(KEYS, 2)
    causal = np.tri(QUERIES, dtype=bool)[None, None]
    for case, seen, mask in (("padding", memory, padding(KEYS)), ("causal", x, causal)):
        oracle = module_oracle("mixers.attention.CrossAttention", CONFIG, parameters, x, memory=seen, memory_mask=mask)
        hidden = (
            {"key_padding_mask": _tensor(~mask[:, 0, 0])} if case == "padding" else {"attn_mask": _tensor(~mask[0, 0])}
        )
        output, weights = theirs(*map(_tensor, (x, seen, seen)), **hidden, average_attn_weights=False)
        yield _agrees(bench, case, oracle, output)
        budget = oracle.budget("result", "float64")
        yield bench.evidence(case).within("weights", oracle.expected["weights"], as_numbers(weights), budget)


@of_reference(needs=("torch",))
def torch_layers(bench: Bench) -> Iterator[ClaimEvidence]:
    """PyTorch's encoder layer and decoder layer agree with the reference, with pre-norm and with post-norm."""
    for position in ("post", "pre"):
        config = dataclasses.replace(CONFIG, norm_position=position)
        x, memory, mask = activations(QUERIES, 3), activations(KEYS, 4), padding(QUERIES)
        parameters = part(config, "encoder.layers.0")
        oracle = module_oracle("layers.EncoderLayer", config, parameters, x, mask=mask)
        theirs = _torch_layer("TransformerEncoderLayer", config, parameters)
        result = theirs(_tensor(x), src_key_padding_mask=_tensor(~mask[:, 0, 0]))
        yield _agrees(bench, f"encoder layer, {position}-norm", oracle, result)
        parameters, causal = part(config, "decoder.layers.0"), np.tri(QUERIES, dtype=bool)[None, None]
        oracle = module_oracle(
            "layers.DecoderLayer", config, parameters, x, mask=causal, memory=memory, memory_mask=padding(KEYS)
        )
        theirs = _torch_layer("TransformerDecoderLayer", config, parameters)
        hidden = {"tgt_mask": _tensor(~causal[0, 0]), "memory_key_padding_mask": _tensor(~padding(KEYS)[:, 0, 0])}
        yield _agrees(bench, f"decoder layer, {position}-norm", oracle, theirs(_tensor(x), _tensor(memory), **hidden))


@of_reference(needs=("torch",))
def torch_layer_norm(bench: Bench) -> Iterator[ClaimEvidence]:
    """`torch.nn.LayerNorm` agrees with the reference on ordinary and on tiny activations."""
    import torch

    parameters = part(CONFIG, "encoder.layers.0.self_attention_norm")
    theirs = torch.nn.LayerNorm(CONFIG.embed_dim, eps=CONFIG.norm_eps, dtype=torch.float64)
    theirs.load_state_dict({name: _tensor(value) for name, value in parameters.items()})
    for spread in (1.0, 1e-3):
        x = (spread * activations(QUERIES, 5)).astype(np.float32)
        oracle = module_oracle("norms.norm.Norm", CONFIG, parameters, x)
        yield _agrees(bench, f"spread {spread:g}", oracle, theirs(_tensor(x)))


@of_reference(needs=("torch",))
def torch_batch_norm(bench: Bench) -> Iterator[ClaimEvidence]:
    """`torch.nn.BatchNorm1d` agrees with the reference, but divides its running variance by n − 1 instead of n."""
    import torch

    config = dataclasses.replace(CONFIG, norm="batch")
    parameters = part(config, "encoder.layers.0.self_attention_norm")
    theirs = torch.nn.BatchNorm1d(
        config.embed_dim, eps=config.norm_eps, momentum=config.norm_momentum, dtype=torch.float64
    )
    theirs.load_state_dict(
        {name: _tensor(value) for name, value in parameters.items()} | {"num_batches_tracked": torch.tensor(0)}
    )
    ours = reference_module("norms.norm.Norm", config, parameters)
    ours.use_batch_statistics()
    unbiased = parameters["running_var"].astype(float)
    rows = BATCH * QUERIES
    for index in range(4):
        x = (activations(QUERIES, 20 + index) * (1 + index)).astype(np.float32)
        oracle = module_oracle("norms.norm.Norm", config, parameters, x)
        budget = oracle.budget("result", "float64")
        record = bench.evidence(f"training batch {index}")
        result = theirs(_tensor(x).flatten(0, 1)).unflatten(0, (BATCH, QUERIES))
        yield record.within("result", ours(x.astype(float)), as_numbers(result), budget)
        state = ours.parameters()
        yield record.within("running_mean", state["running_mean"], as_numbers(theirs.running_mean), budget)
        # The document divides the running variance by n; PyTorch divides it by n − 1.
        share = config.norm_momentum
        unbiased = (1 - share) * unbiased + share * x.reshape(rows, -1).astype(float).var(0, ddof=1)
        yield record.within("running_var over n − 1", unbiased, as_numbers(theirs.running_var), budget)
    x = activations(QUERIES, 30)
    final = {
        name: as_numbers(value).astype(np.float32) for name, value in theirs.state_dict().items() if name in parameters
    }
    theirs.load_state_dict({name: _tensor(v) for name, v in final.items()} | {"num_batches_tracked": torch.tensor(0)})
    oracle = module_oracle("norms.norm.Norm", config, final, x)
    result = theirs.eval()(_tensor(x).flatten(0, 1)).unflatten(0, (BATCH, QUERIES))
    yield _agrees(bench, "evaluation", oracle, result)


@of_reference(needs=("torch",))
def torch_cross_entropy(bench: Bench) -> Iterator[ClaimEvidence]:
    """`torch.nn.functional.cross_entropy` agrees with the reference's loss; both ignore padding."""
    from torch.nn import functional

    random = np.random.default_rng(11)
    logits, targets = (3 * random.normal(size=(4, 6, 9))).astype(np.float32), random.integers(0, 4, (4, 6))
    oracle = function_oracle("training.loss.cross_entropy", {"logits": logits, "targets": targets}, pad_id=2)
    theirs = functional.cross_entropy(_tensor(logits).flatten(0, 1), _tensor(targets).flatten(), ignore_index=2)
    yield _agrees(bench, "padded targets", oracle, theirs)


@of_reference(needs=("flax", "jax"))
def flax_multi_head_attention(bench: Bench) -> Iterator[ClaimEvidence]:
    """`flax.nnx.MultiHeadAttention` agrees with the reference within float32's budget, because the softmax is in
    float32."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    parameters = part(CONFIG, "encoder.layers.0.self_attention")
    heads, size = CONFIG.num_heads, CONFIG.head_dim
    x, memory, mask = activations(QUERIES, 6), activations(KEYS, 7), padding(KEYS)
    oracle = module_oracle("mixers.attention.CrossAttention", CONFIG, parameters, x, memory=memory, memory_mask=mask)
    with jax.enable_x64(True):
        theirs = nnx.MultiHeadAttention(
            heads, CONFIG.embed_dim, decode=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
        )
        for role in ("query", "key", "value"):
            layer = getattr(theirs, role)
            kernel = parameters[f"{role}.weight"].T.reshape(-1, heads, size)
            layer.kernel[...] = jnp.asarray(kernel, jnp.float64)
            layer.bias[...] = jnp.asarray(parameters[f"{role}.bias"].reshape(heads, size), jnp.float64)
        theirs.out.kernel[...] = jnp.asarray(parameters["output.weight"].T.reshape(heads, size, -1), jnp.float64)
        assert theirs.out.bias is not None
        theirs.out.bias[...] = jnp.asarray(parameters["output.bias"], jnp.float64)
        inputs = (jnp.asarray(array, jnp.float64) for array in (x, memory, memory))
        attend = nnx.jit(lambda module, *arrays: module(*arrays, mask=mask))
        result = np.asarray(attend(theirs, *inputs))
    yield _agrees(bench, "padding", oracle, result, "float32", FLOAT32_SOFTMAX)


@of_reference(needs=("jax",))
def jax_dot_product_attention(bench: Bench) -> Iterator[ClaimEvidence]:
    """`jax.nn.dot_product_attention` agrees with the reference within float32's budget, because the softmax is in
    float32."""
    import jax

    random = np.random.default_rng(12)
    shapes = {"query": (BATCH, 3, QUERIES, 4), "key": (BATCH, 3, KEYS, 4), "value": (BATCH, 3, KEYS, 4)}
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    mask = padding(KEYS)
    oracle = function_oracle("mixers.attention.attention", arrays | {"mask": mask}, config=scored(0.5, -1e9))
    query, key, value = (array.swapaxes(1, 2) for array in arrays.values())
    attend = jax.jit(functools.partial(jax.nn.dot_product_attention, mask=mask, scale=0.5))
    merged = np.asarray(attend(query, key, value)).reshape(BATCH, QUERIES, -1)
    yield _agrees(bench, "padding", oracle, merged, "float32", FLOAT32_SOFTMAX)
