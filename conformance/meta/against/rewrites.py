"""Rewrites of one expression in a modeling file: mistakes of several kinds, and rewrites that do not change results.

A row `pattern -> replacement | replacement` is Python with placeholders. A capital letter is a placeholder for one
expression, whose kind `HOLES` defines. As a method's name, a capital letter matches any name. `...` as a call's last
argument matches the remaining arguments.
"""

from __future__ import annotations

import ast
import copy
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meta.against.observing import Site, key_of

Rewrites = Iterator[tuple[ast.AST, ast.AST]]
Found = dict[str, Any]

BLOCK = re.compile(
    r"MLP|Attention|Layer$|Block|Encoder|Decoder|Expert|Mo[Ee]|FFN|Feed|Model|Embedding|Transform|Head|Output$"
)
"""Names of classes whose calls people rarely forget or repeat."""
MOVES = re.compile(
    r"to|float|type(_as)?|contiguous|clone|view|reshape|(un)?squeeze|transpose|permute|"
    r"\w*drop(out\w*|_path)?|slice_\w+|sin|cos"
)
"""Names of functions that people rarely forget; most of these only reshape tensors or convert their dtype."""
LAST = re.compile(r"\.(o_proj|out_proj|dense|output\w*|c_proj)$")
"""Names of the last projection in a block."""
ACTIVATION = re.compile(r"(?i)\bact\b|_act|gelu|silu|relu|tanh|sigmoid|swish|activation")


def _is_application(site: Site, node: ast.AST, _: ast.AST) -> bool:
    kind, name = site.kind(node), ast.unparse(node).rpartition(".")[2]
    is_early = kind == "Linear" and not LAST.search(ast.unparse(node))
    return not (BLOCK.search(kind) or MOVES.fullmatch(name) or is_early)


HOLES: Mapping[str, Callable[[Site, ast.AST, ast.AST], bool]] = {
    "X": lambda site, node, whole: site.same(node, whole),
    "Y": lambda site, node, whole: site.same(node, whole),
    "V": lambda site, node, whole: isinstance(node, ast.Name) and site.same(node, whole),
    "N": lambda site, node, whole: site.kind(node) == "number" or isinstance(node, ast.Constant),
    "K": lambda site, node, whole: site.kind(node) == "number" or site.shape(node)[-1:] == (1,),
    "I": lambda site, node, whole: site.kind(node) == "integers",
    "M": lambda site, node, whole: "mask" in ast.unparse(node),
    "F": _is_application,
    "P": lambda site, node, whole: _is_application(site, node, whole) and site.kind(node) != "Linear",
    "G": lambda site, node, whole: bool(ACTIVATION.search(f"{ast.unparse(node)} {site.kind(node)}")),
    "L": lambda site, node, whole: site.kind(node) == "Linear" and len(site.shape(node)) == 1,
    "J": lambda site, node, whole: site.kind(node) == "Linear" and len(site.shape(node)) == 2,
    "R": lambda site, node, whole: "RMSNorm" in site.kind(node),
    "Z": lambda site, node, whole: site.kind(node) == "LayerNorm",
    "S": lambda site, node, whole: site.kind(node) in ("SiLU", "SiLUActivation"),
    "E": lambda site, node, whole: site.kind(node) == "GELUActivation",
}
"""For each capital letter, a condition on the matched expression and the whole expression. Other letters match all."""

_TABLES = tomllib.loads(Path(__file__).with_name("rewrites.toml").read_text(encoding="utf-8"))
MISTAKES: dict[str, str] = _TABLES["mistakes"]
"""Rewrites that are mistakes, by kind; `OTHER_KINDS` has further kinds."""
EQUIVALENTS: dict[str, str] = _TABLES["equivalents"]
"""Rewrites that do not change results, by kind."""


def by_pattern(site: Site, node: ast.AST, rows: str) -> Rewrites:
    if not isinstance(node, ast.expr) or key_of(node) not in site.seen:
        return
    for row in filter(None, map(str.strip, rows.splitlines())):
        pattern, _, replacements = row.partition(" -> ")
        shape, found = _parsed(pattern), Found()
        is_free = isinstance(shape, ast.Compare | ast.Attribute) or re.search("chunk|split", pattern)
        if (is_free or site.tensor(node)) and _matches(site, shape, node, node, found):
            yield from ((node, filled(replacement, found)) for replacement in replacements.split(" | "))


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _is_hole(name: object) -> bool:
    return isinstance(name, str) and len(name) == 1 and name.isupper()


def _has_rest(node: Any) -> bool:
    return isinstance(node, ast.Call) and bool(node.args) and ast.unparse(node.args[-1]) == "..."


def _matches(site: Site, pattern: Any, node: Any, whole: ast.AST, found: Found) -> bool:
    if isinstance(pattern, ast.Name) and _is_hole(pattern.id):
        if pattern.id in found:
            return ast.unparse(found[pattern.id]) == ast.unparse(node)
        found[pattern.id] = node
        return isinstance(node, ast.expr) and (pattern.id not in HOLES or HOLES[pattern.id](site, node, whole))
    if isinstance(pattern, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_matches(site, *pair, whole, found) for pair in pairs)
    if not isinstance(pattern, ast.AST):
        if _is_hole(pattern) and isinstance(node, str):
            found[pattern] = node
            return not MOVES.fullmatch(node)
        return bool(pattern == node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call) and _has_rest(pattern):
        given = len(pattern.args) - 1
        named = len(pattern.keywords)
        found["..."] = node.args[given:], node.keywords[: len(node.keywords) - named]
        node = ast.Call(node.func, node.args[:given], node.keywords[len(node.keywords) - named :])
        pattern = ast.Call(pattern.func, pattern.args[:-1], pattern.keywords)
    fields = [name for name in pattern._fields if name != "ctx"]
    return all(_matches(site, getattr(pattern, name), getattr(node, name), whole, found) for name in fields)


def filled(template: str, found: Found) -> ast.expr:
    class Fill(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            node = self.generic_visit(node)
            if isinstance(node, ast.Name) and node.id in found:
                return copy.deepcopy(found[node.id])
            if isinstance(node, ast.Attribute) and isinstance(found.get(node.attr), str):
                node.attr = found[node.attr]
            if isinstance(node, ast.Call) and _has_rest(node):
                args, keywords = copy.deepcopy(found["..."])
                return ast.Call(node.func, [*node.args[:-1], *args], [*keywords, *node.keywords])
            return node

    result: ast.expr = Fill().visit(_parsed(template))
    return result


NUMBERS = {0: 1, 1: 2, 2: 3, 3: 2, 0.5: 1.0}
"""Replacements for common numbers."""


def number(site: Site, node: ast.AST) -> Rewrites:
    """Replace a number that a tensor is computed with; add 1 to an offset of positions."""
    parent = site.parents.get(node)
    whole = site.kind(parent) if isinstance(parent, ast.BinOp) else ""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        if whole == "float" or (isinstance(parent, ast.Call) and re.search(r"pow|clamp", ast.unparse(parent.func))):
            yield node, ast.Constant(NUMBERS.get(node.value, 1e-3 if abs(node.value) < 1e-3 else node.value * 2))
    elif site.kind(node) == "number" and whole == "integers":
        yield node, ast.BinOp(node, ast.Add(), ast.Constant(1))  # type: ignore[arg-type]
    elif site.kind(node) == "number" and whole == "float" and (value := site.shape(node)[0]) not in (0, 1):
        yield node, ast.Constant(1e-3 if abs(value) < 1e-3 else float(f"{value / 2:.4g}"))


def operand(site: Site, node: ast.AST) -> Rewrites:
    """Replace a tensor or module by another of the same kind and shape, or swap two arguments."""
    parent = site.parents.get(node)
    if isinstance(node, ast.Call) and len(node.args) > 1 and site.same(*node.args[:2]) and site.tensor(node.args[0]):
        yield node, ast.Call(node.func, [*node.args[1::-1], *node.args[2:]], node.keywords)
    is_output = isinstance(parent, ast.keyword) and "Output" in ast.unparse(site.parents[parent])
    if not isinstance(node, ast.Name | ast.Attribute) or is_output or isinstance(parent, ast.Attribute | ast.Return):
        return
    is_other = site.kind(node) in ("", "number", "integers", "complex") or BLOCK.search(site.kind(node))
    if site.shape(node) and not is_other and not LAST.search(ast.unparse(node)):
        names = (name for name in site.alike(node) if not LAST.search(name))
        yield from ((node, filled(name, {})) for name in names)


def no_mask(site: Site, node: ast.AST) -> Rewrites:
    if isinstance(node, ast.keyword) and "mask" in (node.arg or "") and site.kind(node.value):
        yield node.value, ast.Constant(None)


OTHER_KINDS: Mapping[str, Callable[[Site, ast.AST], Rewrites]] = {"number": number, "operand": operand, "mask": no_mask}
"""Kinds of mistakes that patterns cannot describe."""


def mistakes(site: Site, node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    for kind, rows in MISTAKES.items():
        yield from ((kind, *pair) for pair in by_pattern(site, node, rows))
    for kind, rewrite in OTHER_KINDS.items():
        yield from ((kind, *pair) for pair in rewrite(site, node))


def equivalents(site: Site, node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    for kind, rows in EQUIVALENTS.items():
        yield from ((kind, *pair) for pair in by_pattern(site, node, rows))
    if isinstance(node, ast.Call) and site.kind(node.func) == "Linear" and len(site.shape(node.func)) == 1:
        names = [name for name in site.alike(node.func) if not LAST.search(f"{ast.unparse(node.func)} {name}")]
        for other in names[:1]:
            found = {"A": node.args[0], "L": node.func, "M": _parsed(other)}
            product = "torch.nn.functional.linear(A, torch.cat((L.weight, M.weight)))[..., : L.out_features]"
            yield "fused", node, filled(product, found)
