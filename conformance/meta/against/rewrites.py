"""Rewrites of one expression in a modeling file: kinds of mistakes, and ways to compute the same."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Key = tuple[int, int, int, int]
Rewrites = Iterator[tuple[ast.AST, ast.AST]]


@dataclass(frozen=True)
class Value:
    """What an expression was when the model ran: `float`, `integers`, `number`, or a module's class, with shapes."""

    kind: str
    shape: tuple[Any, ...]


def described(value: object) -> Value | None:
    """Describe a tensor, a number or a module."""
    if isinstance(value, Tensor):
        return Value("float" if value.is_floating_point() else "integers", tuple(value.shape))
    if isinstance(value, nn.Module):
        return Value(type(value).__name__, tuple(tuple(weight.shape) for weight in value.parameters()))
    return Value("number", (value,)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def key_of(node: ast.AST) -> Key:
    """Return where an expression starts and ends."""
    place: Any = node
    return place.lineno, place.col_offset, place.end_lineno, place.end_col_offset


class Observed(ast.NodeTransformer):
    """Wraps each expression of each function's body in `_seen(key, expression)`."""

    def visit(self, node: ast.AST) -> Any:
        """Wrap an expression that is read; leave declarations unchanged."""
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [
                self.visit(part) if isinstance(part, ast.FunctionDef | ast.ClassDef) else part for part in node.body
            ]
            return node
        if isinstance(node, ast.FunctionDef):
            node.body = [self.visit(part) for part in node.body]
            return node
        if isinstance(node, ast.JoinedStr | ast.Constant | ast.Lambda):
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = self.visit(node.value) if node.value else None
            return node
        wrapped = self.generic_visit(node)
        parts = ast.Slice | ast.Starred
        is_index = isinstance(node, ast.Tuple) and any(isinstance(each, parts) for each in node.elts)
        is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if isinstance(node, ast.expr) and not isinstance(node, parts) and not is_index and is_read:
            place = ast.Constant(key_of(node))
            return ast.Call(ast.Name("_seen", ast.Load()), [place, wrapped], [])
        return wrapped


def made(template: str, **parts: ast.AST) -> ast.expr:
    """Return the expression of a template, with its capital letters replaced by expressions."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(parts[node.id]) if node.id in parts else node

    filled: ast.expr = Fill().visit(ast.parse(template, mode="eval").body)
    return filled


@dataclass
class Site:
    """A port's tree, what was seen when it ran, and the function around each node."""

    tree: ast.Module
    seen: Mapping[Key, Value | None]

    def __post_init__(self) -> None:
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.names: dict[ast.AST | None, dict[str, Value]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and (value := self.value(node)):
                self.names.setdefault(self.function(node), {}).setdefault(ast.unparse(node), value)

    def function(self, node: ast.AST) -> ast.AST | None:
        """Return the function around a node."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def value(self, node: ast.AST) -> Value | None:
        """Return what an expression was, or None."""
        return self.seen.get(key_of(node)) if isinstance(node, ast.expr) else None

    def floats(self, node: ast.AST) -> bool:
        """Return whether an expression was a tensor of floats."""
        return (value := self.value(node)) is not None and value.kind == "float"

    def same(self, node: ast.AST, other: ast.AST) -> bool:
        """Return whether two expressions were of one kind and shape."""
        return (value := self.value(node)) is not None and value == self.value(other)

    def alike(self, node: ast.AST) -> list[str]:
        """Return other names of the function that had the same kind and shape, and are not a part of the node."""
        value, text = self.value(node), ast.unparse(node)
        return [
            name for name, other in self.names.get(self.function(node), {}).items() if other == value != name != text
        ]

    def operand(self, node: ast.AST) -> ast.expr | None:
        """Return the tensor that a call or a method of its own shape is applied to."""
        if not isinstance(node, ast.Call) or not self.floats(node):
            return None
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return next((part for part in [*receiver, *node.args[:1]] if self.same(node, part)), None)


def called(node: ast.AST) -> str:
    """Return the last name of what is called, or nothing."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _renamed(node: ast.Call, name: str) -> ast.Call:
    new = copy.deepcopy(node)
    new.func = made(f"A.{name}", A=node.func.value) if isinstance(node.func, ast.Attribute) else made(name)
    return new


def number(site: Site, node: ast.AST) -> Rewrites:
    """Change a number that a tensor is computed with."""
    beside = isinstance(parent := site.parents.get(node), ast.BinOp) and site.floats(parent)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if beside or (called(parent or node) in ("pow", "clamp", "rsqrt", "leaky_relu") and node.value != -1):
            known = {0: 1, 1: 2, 2: 3, 3: 2, 0.0: 1.0, 1.0: 2.0, 0.5: 1.0}
            yield node, ast.Constant(known.get(node.value, 1e-3 if abs(node.value) < 1e-3 else node.value * 2))
    elif beside and (value := site.value(node)) and value.kind == "number" and value.shape[0]:
        yield node, ast.Constant(1e-3 if abs(value.shape[0]) < 1e-3 else float(f"{value.shape[0] / 2:.4g}"))


OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


def operator(site: Site, node: ast.AST) -> Rewrites:
    """Use another operator, or another sign."""
    if isinstance(node, ast.BinOp) and type(node.op) in OTHER and site.floats(node):
        yield node, ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and site.floats(node):
        yield node, node.operand
    if isinstance(node, ast.AugAssign) and type(node.op) in OTHER and site.floats(node.value):
        yield node, ast.AugAssign(node.target, OTHER[type(node.op)](), node.value)


KEPT = {"to", "float", "type_as", "contiguous", "dropout", "clone", "type", "view", "reshape", "transpose", "permute"}


def left_out(site: Site, node: ast.AST) -> Rewrites:
    """Leave out an application, a factor or a summand."""
    if (part := site.operand(node)) is not None and called(node) not in KEPT:
        yield node, part
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div)
        and site.floats(node)
    ):
        yield from ((node, part) for part in (node.left, node.right) if site.same(node, part))


def twice(site: Site, node: ast.AST) -> Rewrites:
    """Apply a call, a factor or a summand twice."""
    if isinstance(node, ast.Call) and (part := site.operand(node)) is not None and called(node) not in KEPT:
        new = copy.deepcopy(node)
        if part in node.args:
            new.args[0] = node
        else:
            new.func = made(f"A.{called(node)}", A=node)
        yield node, new
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Add) and site.same(node, node.left):
        yield node, ast.BinOp(node, node.op, node.right)


def operand(site: Site, node: ast.AST) -> Rewrites:
    """Read another tensor or module of the same kind, or exchange two."""
    is_part = isinstance(site.parents.get(node), ast.Attribute)
    if isinstance(node, ast.Name | ast.Attribute) and (value := site.value(node)):
        if (value.kind == "float" and not is_part) or (value.kind != "number" and value.shape and not is_part):
            yield from ((node, made(name)) for name in site.alike(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div) and site.same(node.left, node.right):
        yield node, ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.Call) and len(node.args) > 1 and site.same(*node.args[:2]) and site.floats(node.args[0]):
        new = copy.deepcopy(node)
        new.args[:2] = node.args[1::-1]
        yield node, new


AXES = re.compile(
    r"(log_)?softmax|mean|sum|cat|chunk|split|unsqueeze|cumsum|flip|transpose|norm|var|std|stack|max|amax|roll|unbind"
)


def axis(site: Site, node: ast.AST) -> Rewrites:
    """Use another axis, or leave a transposition out."""
    if not isinstance(node, ast.Call) or not AXES.fullmatch(called(node)) or key_of(node) not in site.seen:
        return
    for part in [*node.args, *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]:
        try:
            found = ast.literal_eval(part)
        except ValueError:
            continue
        if isinstance(found, int) and not isinstance(found, bool):
            for new in {-1: (-2, 1), -2: (-1, -3), 0: (1,), 1: (2, 0), 2: (1, 3), 3: (2,)}.get(found, ()):
                yield part, ast.parse(str(new), mode="eval").body
    if called(node) == "transpose" and isinstance(node.func, ast.Attribute):
        yield node, node.func.value


def order(site: Site, node: ast.AST) -> Rewrites:
    """Take elements in another order: other halves, other chunks, tiled or repeated heads."""
    if isinstance(node, ast.Subscript) and site.floats(node):
        last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
        if isinstance(last, ast.Slice):
            if last.step is not None:
                start = 0 if last.lower is not None and ast.unparse(last.lower) == "1" else 1
                yield last, ast.Slice(ast.Constant(start) if start else None, None, last.step)
            elif (last.lower is None) != (last.upper is None):
                yield last, ast.Slice(last.upper, last.lower, None)
        receiver = site.parents.get(node)
        grand = site.parents.get(receiver) if receiver else None
        if isinstance(grand, ast.Call) and called(grand) == "expand" and isinstance(node.slice, ast.Tuple):
            place = next((i for i, each in enumerate(node.slice.elts) if ast.unparse(each) == "None"), 0)
            if place > 1 and len(grand.args) > place:
                new = copy.deepcopy(grand)
                indices = new.func.value.slice.elts  # type: ignore[attr-defined]
                indices[place - 1 : place + 1] = indices[place - 1 : place + 1][::-1]
                new.args[place - 1 : place + 1] = new.args[place - 1 : place + 1][::-1]
                yield grand, new
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store) and len(node.elts) > 1:
        known = site.names.get(site.function(node), {})
        first, second = (known.get(ast.unparse(part)) for part in node.elts[:2])
        if first is not None and first == second and first.kind == "float":
            yield node, ast.Tuple([node.elts[1], node.elts[0], *node.elts[2:]], ast.Store())
    if not isinstance(node, ast.Call) or not site.floats(node):
        return
    if called(node) in ("cat", "stack", "concat") and isinstance(node.args[0], ast.Tuple | ast.List):
        new = copy.deepcopy(node)
        new.args[0].elts.reverse()  # type: ignore[attr-defined]
        yield node, new
    if called(node) == "repeat_kv" and len(node.args) == 2:
        yield node, made("A.repeat(1, B, 1, 1)", A=node.args[0], B=node.args[1])
    if called(node) == "repeat_interleave" and isinstance(node.func, ast.Attribute):
        yield node, made("torch.cat([A] * B, dim=-1)", A=node.func.value, B=node.args[0])
    if called(node) in ("view", "reshape") and len(node.args) > 2:
        for i in range(1, len(node.args) - 1):
            new = copy.deepcopy(node)
            new.args[i : i + 2] = new.args[i : i + 2][::-1]
            yield node, new


ACTIVATIONS = ("relu(A)", "silu(A)", "gelu(A)", 'gelu(A, approximate="tanh")', "tanh(A)", "sigmoid(A)")


def activation(site: Site, node: ast.AST) -> Rewrites:
    """Use another activation."""
    if isinstance(node, ast.Call) and (part := site.operand(node)) is not None:
        value = site.value(node.func)
        name = f"{called(node)} {value.kind if value else ''}"
        if re.search(r"(?i)softmax", name):
            yield node, made("torch.sigmoid(A)", A=part)
        elif re.search(r"(?i)\bact|_act|gelu|silu|relu|tanh|sigmoid|swish|activation", name):
            yield from ((node, made(f"torch.nn.functional.{other}", A=part)) for other in ACTIVATIONS)


def rounding(site: Site, node: ast.AST) -> Rewrites:
    """Round to bfloat16 in between."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and site.floats(node.value):
        yield node.value, made("A.to(torch.bfloat16).float()", A=node.value)
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.float32" and key_of(node) in site.seen:
        yield node, made("torch.bfloat16")


def mask(site: Site, node: ast.AST) -> Rewrites:
    """Leave a mask out, or move its edge."""
    if isinstance(node, ast.keyword) and "mask" in (node.arg or "") and site.value(node.value):
        yield node.value, ast.Constant(None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and site.floats(node):
        if "mask" in ast.unparse(node.right):
            yield node, node.left
    if isinstance(node, ast.Call) and called(node) in ("triu", "tril") and key_of(node) in site.seen:
        edge = next((ast.literal_eval(each.value) for each in node.keywords if each.arg == "diagonal"), 0)
        for moved in (edge - 1, edge + 1):
            yield node, ast.Call(node.func, node.args[:1], [ast.keyword("diagonal", ast.Constant(moved))])
    if isinstance(node, ast.Compare) and (value := site.value(node)) and value.kind == "integers":
        other = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}.get(type(node.ops[0]))
        if other:
            yield node, ast.Compare(node.left, [other()], node.comparators)
    if isinstance(node, ast.Name) and node.id.startswith("create_") and key_of(node) in site.seen:
        known = {each.name for part in site.tree.body if isinstance(part, ast.ImportFrom) for each in part.names}
        yield from ((node, made(name)) for name in sorted(known) if name.startswith("create_") and name != node.id)


def normalisation(site: Site, node: ast.AST) -> Rewrites:
    """Normalise wrongly."""
    if not isinstance(node, ast.Call) or not site.floats(node):
        return
    for name in {"mean": ("sum",), "sum": ("mean", "amax"), "rsqrt": ("sqrt", "reciprocal")}.get(called(node), ()):
        yield node.func, _renamed(node, name).func
    if called(node) == "pow" and isinstance(node.func, ast.Attribute):
        yield node, made("A.abs()", A=node.func.value)
    if (value := site.value(node.func)) and node.args and "Norm" in value.kind and len(node.args) == 1:
        parts = {"A": node.args[0], "N": node.func}
        if value.kind == "LayerNorm":
            yield node, made("torch.nn.functional.rms_norm(A, A.shape[-1:], N.weight, 1e-5)", **parts)
        elif "RMS" in value.kind:
            yield node, made("torch.nn.functional.layer_norm(A, A.shape[-1:], N.weight)", **parts)


Rewrite = Callable[[Site, ast.AST], Rewrites]
MISTAKES: Mapping[str, Rewrite] = {
    "number": number,
    "operator": operator,
    "left out": left_out,
    "twice": twice,
    "operand": operand,
    "axis": axis,
    "order": order,
    "activation": activation,
    "rounding": rounding,
    "mask": mask,
    "normalisation": normalisation,
}
"""Kinds of mistakes. Statements in another order are a kind of their own, in `mutants`."""
