import dataclasses
import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tests.families.cases import CHANGES, ONE_SENTENCE
from tests.helpers import invoke, refused

from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints import families
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import accepted_by, export_checkpoint
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import family_called, import_checkpoint
from transparity_conformance.checkpoints.naming import tensors_of
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables.kinds import full_attention_every
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probe_parameters, probes_of
from transparity_conformance.oracle.reach.models import reach_of, small_system

transformers.logging.disable_progress_bar()

MODELS = [*FAMILIES, *CHANGES]
"""The small models, and the further models of some families."""


def model(name: str) -> tuple[str, TransformerConfig, Arrays]:
    model_type = name.partition(", ")[0]
    config = TransformerConfig.from_dict(example_config(model_type).as_dict() | CHANGES.get(name, {}))
    return model_type, config, probe_parameters(config)


def test_rows_name_every_function_of_a_family_by_a_unique_name() -> None:
    modules = [
        importlib.import_module(each.name) for each in pkgutil.iter_modules(families.__path__, f"{families.__name__}.")
    ]
    defined = [
        name
        for module in modules
        for name, found in vars(module).items()
        if getattr(found, "__module__", "") == module.__name__ and name.startswith(("read_", "write_", "packed_"))
    ]
    text = "".join(file.read_text(encoding="utf-8") for file in Path(families.__file__).parent.glob("*.toml"))
    named = {*re.findall(r'"(\w+)"', text)}
    assert len(defined) == len({*defined})
    assert [name for name in defined if not {name, name.partition("_")[2]} & named] == []


TYPOS: list[tuple[str, dict[str, Any]]] = [
    ("mlp_bais", {"without": ["mlp_bais"]}),
    ("*.q_porj", {"without_tensors": ["*.q_porj"]}),
    ("attention_scal", {"always": {"attention_scal": "none"}}),
    ("paad_token_id", {"tokens": {"paad": 0}}),
    ("rope_thta", {"example": {"rope_thta": 1.0}}),
    ("defualt", {"fields": {"head_dim": {"codec": "head_width", "defualt": "null"}}}),
    ("lama", {"sizes": "lama"}),
]


@pytest.mark.parametrize(("typo", "keys"), TYPOS, ids=[typo for typo, _ in TYPOS])
def test_a_typo_in_a_table_is_an_error(typo: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {**families.tables(), typo: {"like": "rms_decoder", "model": "LlamaForCausalLM", **keys}}
    monkeypatch.setattr(families, "tables", lambda: tables)
    with pytest.raises(LookupError, match=re.escape(typo)):
        families.family(typo)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_as_the_same_bits(name: str, tmp_path: Path) -> None:
    model_type, config, parameters = model(name)
    export_checkpoint(model_type, config, parameters, tmp_path)
    again = import_checkpoint(tmp_path)
    given, found = config.as_dict(), again.config.as_dict()
    either = {"num_key_value_heads": config.key_value_heads, "attention_head_dim": config.head_dim}
    assert found | either == given | either
    assert (again.config.key_value_heads, again.config.head_dim) == (config.key_value_heads, config.head_dim)
    assert {key: value.tobytes() for key, value in again.parameters.items()} == {
        key: value.tobytes() for key, value in parameters.items()
    }
    honoured = [remark for remark in again.remarks if remark.startswith(("fields that are not", "tensors"))]
    assert honoured == []


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_agrees_through_the_loader(name: str) -> None:
    report = check(load, family=name, audit=None if name in AUDITED else False)
    assert report.verdict == "agrees", report
    assert (report.audit is not None) == (name in AUDITED)
    assert report.audit is None or not report.audit.faults
    assert not [line for line in report.not_compared if line.startswith(("probe", "long", "square"))]


AUDITED = ("bert", "deepseek_v3", "gemma2", "gpt2", "gpt_neox", "gpt_oss", "ministral3", "mpnet", "vit")
"""Families whose loaders are audited here; `python -m meta.measure --pool audits --twins` audits all."""


def load(folder: str) -> Any:
    (called,) = json.loads(Path(folder, "config.json").read_text())["architectures"]
    return getattr(transformers, called).from_pretrained(folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_size_that_a_check_needs_can_be_written(name: str, tmp_path: Path) -> None:
    config = example_config(name)
    configs = [probe.config for probe in probes_of(config, "config").values()]
    reached = reach_of(config, probe_parameters(config), accepts=accepted_by(name))
    assert reached[-1].name == "deep"
    configs += [each.config for each in reached] + [small_system(config)]
    for index, each in enumerate(dict.fromkeys(configs)):
        export_checkpoint(name, each, probe_parameters(each), tmp_path / str(index))


def test_a_small_model_has_few_tokens_whatever_the_ids_of_special_tokens_are() -> None:
    real: dict[str, Any] = {"target_vocab_size": 128_256, "pad_id": 3, "bos_id": 128_000, "eos_id": 128_009}
    small = small_system(dataclasses.replace(example_config("llama"), **real))
    assert (small.target_vocab_size, small.pad_id, small.bos_id, small.eos_id) == (31, 3, 29, 28)


def test_the_axes_of_an_example_differ() -> None:
    for name in FAMILIES:
        config = example_config(name)
        vocabulary = config.image_size if config.reads_pixels else config.vocab_size
        sizes = [config.embed_dim, config.feed_forward_dim, vocabulary, config.max_length]
        inside = [config.attention_dim, config.num_heads, config.head_dim]
        if config.attends_never:
            inside = [config.recurrent_dim, config.recurrent_heads, config.recurrent_key_heads]
            inside += [config.recurrent_key_dim, config.recurrent_value_dim]
        is_whole = inside[0] == config.embed_dim
        assert len(set(sizes + inside)) == len(sizes + inside) - is_whole, name


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        *ONE_SENTENCE["expressed"],
        ("mistral", full_attention_every(2), "The family mistral cannot express sliding_window"),
    ],
)
def test_a_family_that_cannot_express_a_configuration_says_so(
    name: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(example_config(name), **changes)
    with refused(CheckpointError, named):
        export_checkpoint(name, config, probe_parameters(config), tmp_path)


def test_numbers_that_float32_does_not_hold_are_refused(tmp_path: Path) -> None:
    config = example_config("llama")
    parameters = probe_parameters(config)
    parameters["head.weight"] = parameters["head.weight"].astype(np.float64) + 1e-12
    with refused(CheckpointError, "The parameter head.weight changed when the llama folder was written and read"):
        export_checkpoint("llama", config, parameters, tmp_path)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    config = example_config("llama")
    with refused(CheckpointError, f"{tmp_path} has files in it"):
        export_checkpoint("llama", config, probe_parameters(config), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_packed_tensor_is_left_out_with_one_of_its_parts() -> None:
    one = {"decoder.layers.0.self_attention.query.bias": np.zeros(3)}
    assert tensors_of(one, family_called("gpt2").names) == {}


def test_the_command_writes_a_folder(tmp_path: Path) -> None:
    result = invoke("export", "--family", "gpt2", "--as-hub", tmp_path / "hub")
    assert result.exit_code == 0, result.output
    assert import_checkpoint(tmp_path / "hub").config == example_config("gpt2")
