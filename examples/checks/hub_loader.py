"""Check a function that loads Hugging Face folders, without an adapter.

`python examples/checks/hub_loader.py` prints the verdict, which determines the exit code.
"""

import sys
from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedModel

from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence


# The checker writes a small Llama as a folder, with `config.json` and `model.safetensors`, and gives the folder to this
# function. The loader needs no table of names, because it reads the names of the hub.
def load(folder: Path) -> PreTrainedModel:
    """Return a model from a folder with config.json and safetensors. Put your own loader here."""
    return LlamaForCausalLM.from_pretrained(folder)


# Run the check with random weights. The checker also changes each field of `config.json`, and reports the fields that
# the loader ignores.
if __name__ == "__main__":
    report = check(load, family="llama")
    print(sentence(report))
    sys.exit(report.exit_code)
