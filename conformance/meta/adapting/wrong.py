"""Ports with a bug: no line of their adapters may be wrong without being asked for.

`python -m meta.adapting.wrong FOLDER` (in `conformance/`) puts each bug into the text of a port, and compares the lines
that are found with those of the right port.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meta.adapting.catalogue import PORTS
from transparity.config import TransformerConfig
from transparity_conformance.identify.adapting.adapt import Adapted, adapt

FOLDER = Path(__file__).parent

BUGS: tuple[tuple[str, str, str], ...] = (
    ("nanogpt", "is_causal=True)", "is_causal=True, scale=d**-0.5)"),
    ("nanogpt", "is_causal=True)", "is_causal=False)"),
    ("starcoder", 'approximate="tanh"', 'approximate="none"'),
    ("gpt2-conv1d", "math.sqrt(v.size(-1))", "v.size(-1)"),
    ("nanogpt", "x = x + self.attn", "x = self.attn"),
    ("gpt2-conv1d", "x = x + self.attn", "x = self.ln_1(x) + self.attn"),
    ("nanogpt", 'for block in t["h"]:', 'for block in list(t["h"])[:-1]:'),
    ("mingpt", "k, q, v = (\n", "q, k, v = (\n"),
    ("lecture", "self.query(x) @ self.key(x)", "self.key(x) @ self.query(x)"),
    (
        "bloom",
        "fused[..., part, :].transpose(1, 2) for part in range(3)",
        "fused[..., part, :].transpose(1, 2) for part in (1, 0, 2)",
    ),
    ("mingpt", "q.size(-1) ** -0.5", "1.0"),
    ("mingpt", ".masked_fill(~mask, -math.inf)", ""),
    ("meta-llama", "q.size(-1))", "q.size(-1) * q.size(1))"),
    ("hub-llama", "math.inf).triu(1)", "math.inf).triu(0).tril(-1)"),
    ("hub-llama", "torch.cat([-other, one], -1)", "torch.cat([other, -one], -1)"),
    ("meta-llama-pairs", "1.0 / theta", "1.0 / (theta * 10)"),
    ("meta-llama", 'F.silu(f["w1"](y)) * f["w3"](y)', 'f["w1"](y) * F.silu(f["w3"](y))'),
    ("qwen2-gate-up", "F.silu(gate) * up", "gate * F.silu(up)"),
    ("meta-llama", "repeat_interleave(groups, 1)", "repeat(1, groups, 1, 1)"),
    (
        "hub-llama",
        "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
        "torch.rsqrt(x.var(-1, keepdim=True) + self.eps)",
    ),
    ("gemma-up-gate", "1 + self.weight", "self.weight"),
    ("qwen3-in-turn", "F.silu", "F.gelu"),
    ("phi3", "up * F.silu(gate)", "gate * F.silu(up)"),
    ("falcon", "for part in (-2, -1)", "for part in (-1, -2)"),
    ("falcon", "rotate_pairs(k, c.rope_theta)", "rotate_halves(k, c.rope_theta)"),
    ("neox", "F.gelu", "F.relu"),
    ("bert", "q.size(-1) ** -0.5", "1.0"),
    ("bert", "(mask == 0, -1e9)", "(mask == 1, -1e9)"),
    ("annotated", 'x = x + layer["self_attn"]', 'x = y + layer["self_attn"]'),
    ("t5", 'a["o"](y', 'a["o"](2 * y'),
    ("t5", "+ bias\n", "\n"),
    ("annotated", "math.sqrt(self.c.embed_dim)", "1"),
    ("bert", "F.gelu", "F.relu"),
)
"""A port, what is in its file, and what is written instead."""


def file_of(port: str) -> Path:
    """The file of a port."""
    return FOLDER / f"{PORTS[port][0].__module__.rpartition('.')[2]}.py"


def broken(port: str, old: str, new: str, folder: Path) -> Callable[[TransformerConfig], Any]:
    """The port with a bug, from a file that is written into a folder."""
    text = file_of(port).read_text(encoding="utf-8")
    assert old in text, (port, old)
    path = folder / f"wrong_{port.replace('-', '_')}_{abs(hash((old, new)))}.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    made: Callable[[TransformerConfig], Any] = getattr(module, PORTS[port][0].__name__)
    return made


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The adapter of a port with a bug, beside that of the right port."""

    port: str
    right: Adapted
    result: Adapted

    @property
    def wrong(self) -> list[str]:
        """The lines that differ from those of the right port."""
        lines = self.result.found.lines
        return [name for name, text in lines.items() if self.right.found.lines[name] != text]


def outcome(make: Callable[[TransformerConfig], Any], config: TransformerConfig, port: str, right: Adapted) -> Outcome:
    """Find the adapter of a port with a bug."""
    return Outcome(port, right, adapt(make, config, budget=8))


def kind_of(found: Outcome) -> str:
    """What came of a bug: `no bug` if it is another layout alone, or does not act."""
    if found.result.is_proved:
        return "no bug"
    if found.wrong:
        return "wrong"
    return "settled" if found.result.is_settled else "asked"


def main(folder: Path) -> None:
    """Print a line for each bug."""
    right: dict[str, Adapted] = {}
    counts: Counter[str] = Counter()
    for port, old, new in BUGS:
        make, config = PORTS[port]
        right.setdefault(port, adapt(make, config))
        found = outcome(broken(port, old, new, folder), config, port, right[port])
        kind = kind_of(found)
        counts[kind] += 1
        known, faults = found.result.found, {each.fault.id for each in found.result.found.faults}
        told = f"asks for {len(known.unsettled)}, lost at {known.lost_at}" if known.lost_at else f"{faults or ''}"
        print(f"{port:18} {new!r:60} {kind:8} {told} {found.wrong[:3]}", flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
