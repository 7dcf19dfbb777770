import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx
from tests.helpers import invoke, refused, run_python

from meta.audits.measure import changed
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.running.frameworks.modules import module_in
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.inputs import framework_of, taps_in
from transparity_conformance.running.loading import load_port

FILE = Path(__file__).parent / "hand_written_llama.py"


def of(name: str) -> Callable[..., Any]:
    return load_port(f"{FILE}:{name}")


@pytest.mark.parametrize("name", ["load", "load_a_tuple", "load_an_object", "load_in_training"])
def test_a_right_loader_agrees_whatever_form_its_answers_have(name: str) -> None:
    report = check(of(name), family="llama")
    assert (report.preset, report.verdict) == ("llama", "agrees")
    assert not [line for line in report.not_compared if "probe" in line]


@pytest.mark.parametrize(("name", "verdict"), [("load_with_a_cache", "agrees"), ("load_that_forgets", "diverges")])
def test_a_loaded_model_that_offers_steps_is_decoded_with_its_cache(name: str, verdict: str) -> None:
    report = check(of(name), family="llama", audit=False)
    assert {claim.id: claim.verdict for claim in report.claims}["step"] == report.verdict == verdict
    assert {cause.mistake for fault in report.faults for cause in fault.causes} <= {"cache-mask"}


def test_on_the_command_line_a_loader_runs_apart_and_leaves_no_files(tmp_path: Path) -> None:
    command = ("-m", "transparity_conformance", "check", f"{FILE}:load_an_object", "--family", "llama")
    ended = run_python(*command, TMPDIR=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "agrees with the reference" in ended.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("transparity-")]


def test_a_size_that_cannot_be_loaded_is_not_compared() -> None:
    report = check(of("load_only_groups"), family="llama")
    lines = [line for line in report.not_compared if "square" in line]  # one line for each size that was tried
    assert lines
    assert all("load(folder) raised ValueError: this model is 24 wide" in line for line in lines)
    assert report.verdict == "agrees"


def test_a_model_that_the_family_cannot_express_is_refused(tmp_path: Path) -> None:
    config = example_config("gpt2")
    with refused(PortError, "No folder can be written for load(folder): The family llama cannot express"):
        HubBuild(of("load"), "llama", str(tmp_path))(config, probe_parameters(config))


def test_a_folder_lives_as_long_as_its_model(tmp_path: Path) -> None:
    config = example_config("llama")
    forward = HubBuild(of("load"), "llama", str(tmp_path))(config, probe_parameters(config))
    (folder,) = tmp_path.glob("*/model")
    assert import_checkpoint(folder).config.embed_dim == config.embed_dim
    del forward
    assert list(tmp_path.iterdir()) == []


class Double(nnx.Module):
    def __call__(self, tokens: Any) -> Any:
        return tokens * 2


def test_a_port_that_keeps_its_framework_in_an_attribute_contains_no_module() -> None:
    assert module_in(SimpleNamespace(xp=np)) is None


def test_tokens_are_arrays_of_the_framework_of_the_model() -> None:
    assert framework_of(torch.nn.Linear(1, 1)) == "torch"
    assert framework_of(Double()) == "jax"
    assert framework_of(functools.partial(of("load"), forgets=True)) == "torch"
    file: dict[str, Any] = {"np": np}
    exec("def plain(tokens): return tokens", file)
    assert framework_of(file["plain"]) == "numpy"
    exec("import jax\ndef plain(tokens): return tokens", file)
    assert framework_of(file["plain"]) == "jax"
    exec("def hold(model): return lambda tokens: model(tokens)", {"np": np}, file)
    assert framework_of(file["hold"](torch.nn.Linear(1, 1))) == "torch"
    exec("class Own(Linear): pass", {"Linear": torch.nn.Linear, "__name__": "their.models"}, file)
    assert framework_of(file["hold"](file["Own"](1, 1))) == "torch"


ONE = np.zeros((2, 3, 5))


@pytest.mark.parametrize(
    "returned", [ONE, (ONE, "cache"), [ONE, ONE], {"logits": ONE}, SimpleNamespace(logits=ONE), list(ONE), ONE.tolist()]
)
def test_logits_are_found_in_every_form(returned: Any) -> None:
    assert np.array_equal(np.asarray(taps_in(returned, example_config("llama"))["logits"]), ONE)


def test_an_encoder_answers_with_the_output_that_its_head_has() -> None:
    pooled = SimpleNamespace(last_hidden_state=ONE, pooler_output=ONE[:, 0] + 1, logits=None)
    assert np.array_equal(taps_in(pooled, example_config("bert"))["logits"], ONE[:, 0] + 1)


@pytest.mark.long
def test_the_command_fails_for_an_ignored_field_only_if_an_audit_is_asked_for(tmp_path: Path) -> None:
    changed('ACTIVATIONS[c.get("hidden_act", "silu")]', "F.silu", tmp_path)
    port, says = f"{tmp_path / 'llama_module.py'}:load", "1 of 18 fields ignored: hidden_act"
    for options, code, shown in (((), 0, says), (("--audit",), 1, says), (("--no-audit",), 0, "was not audited")):
        result = invoke("check", port, "--family", "llama", *options)
        assert (result.exit_code, shown in " ".join(result.stdout.split())) == (code, True), result.output
