"""Ports with a bug: no line of their adapters may be wrong without being asked for.

`python -m meta.adapting.wrong FOLDER MOST` (in `conformance/`) puts each bug into the text of at most MOST ports, and
compares the lines that are found with those of the right port.
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
from transparity_conformance.capabilities.stranger import PortError
from transparity_conformance.ports.adapting.adapt import Adapted, adapt

FOLDER = Path(__file__).parent

BUGS: tuple[tuple[str, str, str], ...] = (
    ("gpt", "is_causal=True)", "is_causal=True, scale=d**-0.5)"),
    ("gpt", "is_causal=True)", "is_causal=False)"),
    ("gpt", 'approximate="tanh"', 'approximate="none"'),
    ("gpt", "math.sqrt(v.size(-1))", "v.size(-1)"),
    ("gpt", "x = x + self.attn", "x = self.attn"),
    ("gpt", "x = x + self.attn", "x = self.ln_1(x) + self.attn"),
    ("gpt", 'for block in t["h"]:', 'for block in list(t["h"])[:-1]:'),
    ("gpt", "k, q, v = (\n", "q, k, v = (\n"),
    ("gpt", "self.query(x) @ self.key(x)", "self.key(x) @ self.query(x)"),
    (
        "gpt",
        "fused[..., part, :].transpose(1, 2) for part in range(3)",
        "fused[..., part, :].transpose(1, 2) for part in (1, 0, 2)",
    ),
    ("gpt", "q.size(-1) ** -0.5", "1.0"),
    ("gpt", ".masked_fill(~mask, -math.inf)", ""),
    ("llama", "q.size(-1))", "q.size(-1) * q.size(1))"),
    ("llama", "math.inf).triu(1)", "math.inf).triu(0).tril(-1)"),
    ("llama", "torch.cat([-other, one], -1)", "torch.cat([other, -one], -1)"),
    ("llama", "1.0 / theta", "1.0 / (theta * 10)"),
    ("llama", 'F.silu(f["w1"](y)) * f["w3"](y)', 'f["w1"](y) * F.silu(f["w3"](y))'),
    ("llama", "F.silu(gate) * up", "gate * F.silu(up)"),
    ("llama", "repeat_interleave(groups, 1)", "repeat(1, groups, 1, 1)"),
    (
        "llama",
        "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
        "torch.rsqrt(x.var(-1, keepdim=True) + self.eps)",
    ),
    ("llama", "1 + self.weight", "self.weight"),
    ("llama", "F.silu", "F.gelu"),
    ("fused", "up * F.silu(gate)", "gate * F.silu(up)"),
    ("fused", "for part in (-2, -1)", "for part in (-1, -2)"),
    ("fused", "rotate_pairs(k, c.rope_theta)", "rotate_halves(k, c.rope_theta)"),
    ("fused", "F.gelu", "F.relu"),
    ("encoders", "q.size(-1) ** -0.5", "1.0"),
    ("encoders", "(mask == 0, -1e9)", "(mask == 1, -1e9)"),
    ("encoders", 'x = x + layer["self_attn"]', 'x = y + layer["self_attn"]'),
    ("encoders", 'a["o"](y', 'a["o"](2 * y'),
    ("encoders", "+ bias\n", "\n"),
    ("encoders", "math.sqrt(self.c.embed_dim)", "1"),
    ("encoders", "F.gelu", "F.relu"),
)
"""The file, what is in it, and what is written instead."""


def broken(file: str, old: str, new: str, folder: Path, number: int) -> Any:
    """The module of a file with a bug."""
    text = (FOLDER / f"{file}.py").read_text(encoding="utf-8")
    assert old in text, (file, old)
    path = folder / f"bug_{number}_{file}.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


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


def main(folder: Path, most: int) -> None:
    """Print a line for each bug and each port that has it, of which at most `most` are taken."""
    right: dict[str, Adapted] = {}
    counts: Counter[str] = Counter()
    for number, (file, old, new) in enumerate(BUGS):
        module, left = broken(file, old, new, folder, number), most
        for name, (make, config) in PORTS.items():
            if make.__module__ != f"meta.adapting.{file}" or not left:
                continue
            right.setdefault(name, adapt(make, config))
            try:
                found = outcome(getattr(module, make.__name__), config, name, right[name])
            except PortError:  # the bug is in another port of the file, and this one has no such names
                continue
            kind = kind_of(found)
            counts[kind] += 1
            left -= kind != "no bug"
            known, faults = found.result.found, {each.fault.id for each in found.result.found.faults}
            told = f"asks for {len(known.unsettled)}, lost at {known.lost_at}" if known.lost_at else f"{faults or ''}"
            print(f"{file}: {new!r:60} {name:18} {kind:8} {told} {found.wrong[:3]}", flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
