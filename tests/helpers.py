"""Shared helpers: read tables, run our command or Python, expect errors of one sentence, write small checkpoints."""

import dataclasses
import io
import os
import subprocess
import sys
import tomllib
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.cli import app
from transparity_conformance.oracle.probes import probe_parameters


def table(test: str, name: str) -> dict[str, Any]:
    return tomllib.loads(Path(test).with_name(name).read_text(encoding="utf-8"))


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_python(*arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def peak_of(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def plain(shown: Any, width: int, *, crop: bool = True) -> str:
    """Return what `rich` prints in a terminal without colors."""
    printed = io.StringIO()
    Console(width=width, file=printed, color_system=None).print(shown, crop=crop)
    return printed.getvalue()


@contextmanager
def refused(error: type[TransparityError], begins: str) -> Iterator[None]:
    """Assert that the `with` block raises `error` with one sentence that begins with `begins`."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(begins)
    assert message.endswith(".")
    assert "\n" not in message
    assert ". " not in message, "the message must be one sentence"


def exported(family: str, folder: Path, **fields: Any) -> TransformerConfig:
    config = dataclasses.replace(example_config(family), **fields)
    export_checkpoint(family, config, probe_parameters(config), folder)
    return config


def tiny(**fields: Any) -> TransformerConfig:
    default: dict[str, Any] = {"architecture": "decoder", "target_vocab_size": 5, "num_decoder_layers": 1}
    default |= {"max_length": 4, "embed_dim": 4, "num_heads": 1, "feed_forward_dim": 2}
    return TransformerConfig(**default | fields)


LIKE_GPT2: dict[str, Any] = {"norm_position": "pre", "final_norm": True, "tied_head": True, "head_bias": False}
