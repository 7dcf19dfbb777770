"""Check a function that loads Hugging Face folders, without an adapter.

`python examples/checks/hub_loader.py` prints the verdict and ends with its exit code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedModel

from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence


def load(folder: Path) -> PreTrainedModel:
    """Return a model from a folder with config.json and safetensors. Put your own loader here."""
    return LlamaForCausalLM.from_pretrained(folder)


if __name__ == "__main__":
    report = check(load, family="llama")
    print(sentence(report))
    sys.exit(report.exit_code)
