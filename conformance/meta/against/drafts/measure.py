"""The pool `drafts`: hand-written transformers models with several mistakes, which one run must find.

A comment `# mistake: …` marks each wrong line. A mistake counts as found if the checker reports the line, or a line
that uses the result of the wrong line (`meta.against.power`).
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from meta.against.classes import configured
from meta.against.power import lines_of_use
from meta.trial import Measure, Trial
from transparity_conformance import check
from transparity_conformance.against.small.build import build
from transparity_conformance.running.loading import load_file

CLASSES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "vit": "ViTForImageClassification",
}
"""The transformers class that each draft implements, by model type."""


def judged(model_type: str) -> dict[str, Any]:
    file = Path(__file__).with_name(f"{model_type.removesuffix('_text')}.py")
    model: Any = build(configured(model_type), CLASSES[model_type])
    draft = load_file(file).Draft(model.config).eval()
    draft.load_state_dict(model.state_dict())
    begun = time.process_time()
    report = check(draft, against=model)
    told = {fault.source["line"] for fault in report.faults if fault.source is not None}
    marked = marks(file.read_text(encoding="utf-8"))
    return {
        "verdict": report.verdict,
        "told": [line for line, right in marked.items() if right & told],
        "missed": [line for line, right in marked.items() if not right & told],
        "causes": [cause.says for fault in report.faults for cause in fault.causes],
        "seconds": round(time.process_time() - begun, 1),
    }


def marks(text: str) -> Mapping[int, set[int]]:
    """Return, for each wrong line, the lines that a report may name: the wrong line, and the lines that use its
    result."""
    found = [number for number, line in enumerate(text.splitlines(), 1) if "# mistake: " in line]
    return {number: {number} | lines_of_use(text, number, number) for number in found}


def trials(options: argparse.Namespace) -> Sequence[Trial]:
    return [Trial(name, partial(judged, name)) for name in CLASSES]


MEASURES = (
    Measure(
        "mistakes reported", lambda _, answer: (len(answer["told"]), len(answer["told"]) + len(answer["missed"])), 1.0
    ),
)
