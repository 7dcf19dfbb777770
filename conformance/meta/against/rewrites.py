"""Rewrites of one expression in a modeling file: mistakes of several kinds, and rewrites that do not change results.

A row `pattern -> replacement | replacement` is Python with placeholders. A capital letter is a placeholder for one
expression, which `HOLES` restricts. As a method's name, a capital letter matches any name. `...` as a call's last
argument matches the remaining arguments. A row may match too much code, because every rewritten file is run, and its
outputs decide whether the rewrite is a mistake."""

import ast
import copy
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Key = tuple[int, int, int, int]
Rewrites = Iterator[tuple[ast.AST, ast.AST]]
Found = dict[str, Any]

BLOCK = re.compile(
    r"(mlp|attention|attn|layer|block|(en|de)coder|experts?|moe|ffn|model|module|embed\w*|transform|head)$"
)
"""Matches names of modules that people rarely forget to call and rarely call twice."""
MOVES = re.compile(
    r"to|float|type(_as)?|contiguous|clone|view|reshape|(un)?squeeze|transpose|permute|"
    r"\w*drop(out\w*|_path)?|slice_\w+|sin|cos"
)
"""Matches names of methods that people rarely forget to call; most only reshape a tensor or convert its dtype."""
LINEAR = re.compile(r"proj|dense|fc|lin|query|key|value")
LAST = re.compile(r"\.(o_proj|out_proj|dense|output\w*|c_proj)$")
"""Matches names of the last projection in a block."""
ACTIVATION = re.compile(r"(?i)\bact\b|_act|act_fn|gelu|silu|relu|tanh|sigmoid|swish|activation")
NUMBER = re.compile(r"scal|factor|theta|multiplier|eps")
"""Matches names of variables that hold a number, not a tensor."""
OPTION = re.compile(r"mask|past|cache|config|kwargs|ids|use_|output_")
"""Matches names of arguments that hold no features."""


def key_of(node: ast.AST) -> Key:
    place: Any = node
    return place.lineno, place.col_offset, place.end_lineno, place.end_col_offset


class Site:
    """A port's syntax tree, with the names that each function reads."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.names: dict[ast.AST | None, dict[str, ast.AST]] = {}
        for node in ast.walk(self.tree):
            if _is_read(node):
                self.names.setdefault(self.function(node), {}).setdefault(ast.unparse(node), node)

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        found: ast.AST | None = node
        while found is not None and not isinstance(found, ast.FunctionDef):
            found = self.parents.get(found)
        return found

    def alike(self, node: ast.AST) -> list[str]:
        """Return the other variables of the function that contains `node`, or the module's other attributes."""
        names = self.names.get(self.function(node), {})
        return [name for name, other in names.items() if type(other) is type(node) and name != ast.unparse(node)]


def _is_read(node: ast.AST) -> bool:
    is_own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    return (isinstance(node, ast.Name) or is_own) and isinstance(getattr(node, "ctx", None), ast.Load)


def _is_application(node: ast.AST) -> bool:
    text = ast.unparse(node)
    name = text.rpartition(".")[2]
    return not (BLOCK.search(name) or MOVES.fullmatch(name) or (LINEAR.search(name) and not LAST.search(text)))


HOLES: Mapping[str, Callable[[ast.AST], bool]] = {
    "V": lambda node: isinstance(node, ast.Name),
    "N": lambda node: isinstance(node, ast.Constant) or bool(NUMBER.search(ast.unparse(node))),
    "M": lambda node: "mask" in ast.unparse(node),
    "F": _is_application,
    "P": lambda node: _is_application(node) and not LINEAR.search(ast.unparse(node)),
    "G": lambda node: bool(ACTIVATION.search(ast.unparse(node))),
}
"""For each capital letter, a condition on the expression. Other letters match all expressions."""

_TABLES = tomllib.loads(Path(__file__).with_name("rewrites.toml").read_text(encoding="utf-8"))
MISTAKES: dict[str, str] = _TABLES["mistakes"]
"""Rewrites that are mistakes, by kind; `OTHER_KINDS` has further kinds."""
EQUIVALENTS: dict[str, str] = _TABLES["equivalents"]
"""Rewrites that do not change results, by kind."""


def by_pattern(node: ast.AST, rows: str) -> Rewrites:
    for row in filter(None, map(str.strip, rows.splitlines())) if isinstance(node, ast.expr) else ():
        pattern, _, replacements = row.partition(" -> ")
        found = Found()
        if _matches(_parsed(pattern), node, found):
            yield from ((node, filled(replacement, found)) for replacement in replacements.split(" | "))


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _is_hole(name: object) -> bool:
    return isinstance(name, str) and len(name) == 1 and name.isupper()


def _has_rest(node: Any) -> bool:
    return isinstance(node, ast.Call) and bool(node.args) and ast.unparse(node.args[-1]) == "..."


def _matches(pattern: Any, node: Any, found: Found) -> bool:
    if isinstance(pattern, ast.Name) and _is_hole(pattern.id):
        if pattern.id in found:
            return ast.unparse(found[pattern.id]) == ast.unparse(node)
        found[pattern.id] = node
        return isinstance(node, ast.expr) and (pattern.id not in HOLES or HOLES[pattern.id](node))
    if isinstance(pattern, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_matches(*pair, found) for pair in pairs)
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
    return all(_matches(getattr(pattern, name), getattr(node, name), found) for name in fields)


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
    """Replace a number in a formula by another number."""
    parent = site.parents.get(node)
    if not isinstance(parent, ast.BinOp | ast.Call):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        if isinstance(parent, ast.BinOp) or re.search(r"pow|clamp", ast.unparse(parent.func)):
            yield node, ast.Constant(NUMBERS.get(node.value, 1e-3 if abs(node.value) < 1e-3 else node.value * 2))
    elif _is_read(node) and NUMBER.search(name := ast.unparse(node)) and isinstance(parent, ast.BinOp):
        yield node, _parsed("1e-3" if "eps" in name else f"{name} * 0.5")


def operand(site: Site, node: ast.AST) -> Rewrites:
    """Replace a variable or an attribute of the module by another, or swap two arguments."""
    parent = site.parents.get(node)
    if isinstance(node, ast.Call) and len(node.args) > 1:
        yield node, ast.Call(node.func, [*node.args[1::-1], *node.args[2:]], node.keywords)
    is_output = isinstance(parent, ast.keyword) and "Output" in ast.unparse(site.parents[parent])
    if not _is_read(node) or is_output or isinstance(parent, ast.Attribute | ast.Return):
        return
    names = [ast.unparse(node), *site.alike(node)]
    if not any(pattern.search(names[0]) for pattern in (BLOCK, LAST, OPTION)):
        yield from ((node, _parsed(name)) for name in names[1:] if not (LAST.search(name) or OPTION.search(name)))


def no_mask(site: Site, node: ast.AST) -> Rewrites:
    if isinstance(node, ast.keyword) and "mask" in (node.arg or ""):
        yield node.value, ast.Constant(None)


OTHER_KINDS: Mapping[str, Callable[[Site, ast.AST], Rewrites]] = {"number": number, "operand": operand, "mask": no_mask}
"""Kinds of mistakes that patterns cannot describe."""


def mistakes(site: Site, node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    for kind, rows in MISTAKES.items():
        yield from ((kind, *pair) for pair in by_pattern(node, rows))
    for kind, rewrite in OTHER_KINDS.items():
        yield from ((kind, *pair) for pair in rewrite(site, node))


def equivalents(site: Site, node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    for kind, rows in EQUIVALENTS.items():
        yield from ((kind, *pair) for pair in by_pattern(node, rows))
    if isinstance(node, ast.Call) and len(node.args) == 1 and LINEAR.search(ast.unparse(node.func)):
        for other in site.alike(node.func):
            found = {"A": node.args[0], "L": node.func, "M": _parsed(other)}
            product = "torch.nn.functional.linear(A, torch.cat((L.weight, M.weight)))[..., : L.out_features]"
            yield "fused", node, filled(product, found)
