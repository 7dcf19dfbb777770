"""Rewrites of one expression that compute the same up to rounding."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from meta.against.rewrites import Rewrite, Rewrites, Site, called, key_of, made


def commuted(site: Site, node: ast.AST) -> Rewrites:
    """`b + a` for `a + b`, `b * a` for `a * b`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult) and site.floats(node):
        yield node, ast.BinOp(node.right, node.op, node.left)


def reciprocal(site: Site, node: ast.AST) -> Rewrites:
    """`x * (1 / c)` for `x / c`, `1 / sqrt(x)` for `rsqrt(x)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and site.floats(node):
        yield node, made("A * (1 / B)", A=node.left, B=node.right)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.rsqrt":
        yield node, made("1 / torch.sqrt(A)", A=node.args[0])


def contraction(site: Site, node: ast.AST) -> Rewrites:
    """Einsum for a product of matrices; a plain product, or addmm, for a linear module."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.matmul":
        yield node, made('torch.einsum("...ij,...jk->...ik", A, B)', A=node.args[0], B=node.args[1])
    if isinstance(node, ast.Call) and (value := site.value(node.func)) and value.kind == "Linear" and node.args:
        parts = {"A": node.args[0], "L": node.func}
        if len(value.shape) == 1:
            yield node, made("A @ L.weight.t()", **parts)
        else:
            flat = "torch.addmm(L.bias, A.flatten(0, -2), L.weight.t())"
            yield node, made(f"{flat}.unflatten(0, A.shape[:-1])", **parts)


def fused(site: Site, node: ast.AST) -> Rewrites:
    """One product with concatenated weights for one of two projections of the same input."""
    if not (isinstance(node, ast.Call) and (value := site.value(node.func)) and value.kind == "Linear"):
        return
    others = [name for name in site.alike(node.func) if name.startswith("self.")]
    if others and len(value.shape) == 1:
        weights = "torch.cat((L.weight, M.weight))"
        fused_call = f"torch.nn.functional.linear(A, {weights})[..., : L.out_features]"
        yield node, made(fused_call, A=node.args[0], L=node.func, M=made(others[0]))


def softmax(site: Site, node: ast.AST) -> Rewrites:
    """A quotient of exponentials for softmax."""
    if called(node) == "softmax" and site.floats(node) and isinstance(node, ast.Call):
        part = site.operand(node) or node.args[0]
        yield node, made("torch.exp(A.float() - torch.logsumexp(A.float(), dim=-1, keepdim=True))", A=part)


def shape(site: Site, node: ast.AST) -> Rewrites:
    """Reshape for view, view for reshape, permute for transpose, split for chunk."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and key_of(node) in site.seen):
        return
    if (name := called(node)) in ("view", "reshape"):
        yield node.func, made(f"A.{'reshape' if name == 'view' else 'view'}", A=node.func.value)
    if name == "transpose" and [ast.unparse(each) for each in node.args] == ["1", "2"]:
        value = site.value(node)
        if value and len(value.shape) in (3, 4):
            yield (
                node,
                made("A.permute(0, 2, 1, 3)" if len(value.shape) == 4 else "A.permute(0, 2, 1)", A=node.func.value),
            )


def scaling(site: Site, node: ast.AST) -> Rewrites:
    """Scale the query before the product, instead of the scores after it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and called(node.left) == "matmul":
        product = copy.deepcopy(node.left)
        assert isinstance(product, ast.Call)
        product.args[0] = ast.BinOp(product.args[0], ast.Mult(), node.right)
        yield node, product


def activation(site: Site, node: ast.AST) -> Rewrites:
    """`x * sigmoid(x)` for SiLU, the error function for GELU, a clamp for ReLU."""
    if not (isinstance(node, ast.Call) and len(node.args) == 1 and site.floats(node)):
        return
    value = site.value(node.func)
    formulas = {
        "SiLU": "A * torch.sigmoid(A)",
        "ReLU": "A.clamp(min=0)",
        "GELU": "0.5 * A * (1 + torch.erf(A / 2**0.5))",
    }
    names = {"SiLUActivation": "SiLU", "GELUActivation": "GELU"}
    if value and (formula := formulas.get(names.get(value.kind, value.kind))):
        yield node, made(formula, A=node.args[0])


def square(site: Site, node: ast.AST) -> Rewrites:
    """`x * x` for `x.pow(2)`, a sum over a count for a mean."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and site.floats(node)):
        return
    if called(node) == "pow" and ast.unparse(node.args[0]) == "2":
        yield node, made("A * A", A=node.func.value)
    if called(node) == "mean" and site.floats(node.func.value):
        yield node, made("A.sum(dim=-1, keepdim=True) / A.shape[-1]", A=node.func.value)


def mask(site: Site, node: ast.AST) -> Rewrites:
    """Fill the scores where the mask hides, instead of adding it."""
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and ast.unparse(node.right) in ("attention_mask", "causal_mask")
    ):
        yield node, made("A.masked_fill(B < 0, torch.finfo(A.dtype).min)", A=node.left, B=node.right)


def heads(site: Site, node: ast.AST) -> Rewrites:
    """Repeat each head by `repeat_interleave`, or rotate by `torch.roll`."""
    if called(node) == "repeat_kv" and isinstance(node, ast.Call) and key_of(node) in site.seen:
        yield node, made("torch.repeat_interleave(A, B, dim=1)", A=node.args[0], B=node.args[1])


EQUIVALENTS: Mapping[str, Rewrite] = {
    "commuted": commuted,
    "reciprocal": reciprocal,
    "contraction": contraction,
    "fused": fused,
    "softmax": softmax,
    "shape": shape,
    "scaling": scaling,
    "activation": activation,
    "square": square,
    "mask": mask,
    "heads": heads,
}
"""Kinds of right rewrites."""
