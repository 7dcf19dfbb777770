import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tests.families.cases import CASES, REFUSED, Case
from tests.helpers import invoke, refused
from tests.looping import for_each
from transformers import modeling_rope_utils

from transparity.config import TransformerConfig
from transparity.errors import ParameterError, TransparityError
from transparity.parameters import load_parameters
from transparity_conformance.checking.check import PortError, check
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.importing import Checkpoint, import_checkpoint
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import frame_inputs, pixel_inputs
from transparity_conformance.report.comparison import as_numbers, difference, share

transformers.logging.disable_progress_bar()


def new(case: Case) -> Any:
    model_class = getattr(transformers, case.model)
    model = model_class(model_class.config_class(**case.fields, attn_implementation="eager")).eval()
    if case.expected.get("tied_head") is False:  # T5's class ties the head, but this case has a separate one
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return model


def learned(model: Any) -> dict[str, torch.Tensor]:
    """Return a model's weights, with Whisper's table of positions, the bias of logits, and routers' corrections."""
    frozen = "model.encoder.embed_positions.weight" if model.config.model_type == "whisper" else ""
    weights = {name: value for name, value in model.named_parameters() if value.requires_grad or name == frozen}
    kept = ("final_logits_bias", "e_score_correction_bias")
    return weights | {name: value for name, value in model.named_buffers() if name.endswith(kept)}


TABLES = ("embed", "shared", "wte", "wpe", "relative")


def made(case: Case) -> Any:
    """Return the model with weights that reveal faults: gains vary around one, and biases are not zero."""
    model = new(case)
    random = torch.Generator().manual_seed(5)
    from_zero = ("gemma", "gemma2", "gemma3_text", "qwen3_next")
    one = 0 if model.config.model_type in from_zero else 1
    with torch.no_grad():
        for name, value in learned(model).items():
            drawn = torch.randn(value.shape, generator=random)
            if value.ndim < 2:
                is_gain = name.endswith("weight")
                value.copy_(0.3 * drawn + ((1 if "linear_attn" in name else one) if is_gain else 0))
            else:
                value.copy_(drawn if any(part in name for part in TABLES) else 1.3 * drawn / value.shape[1] ** 0.5)
    return model


def tokens_of(config: TransformerConfig, length: int) -> dict[str, np.ndarray]:
    """Return a model's inputs, with three rows; except in `target`, row 0 starts and row 1 ends with padding."""
    if config.reads_pixels:
        return {"pixels": pixel_inputs(config, 3, 7)}
    random = np.random.default_rng(7)
    inputs = {"source": frame_inputs(config, 3, 7)} if config.reads_frames else {}
    for name in config.token_inputs:
        shape = (3, length - 2 if name == "target" else length)
        tokens = random.integers(3, config.stack_vocab_size(config.input_stack(name)) - 2, shape)
        if config.pad_id is not None and name != "target":
            tokens[0, :2] = config.pad_id
            tokens[1, -3:] = config.pad_id
        if config.pad_id is not None and name == "target":
            tokens[2, 2] = config.pad_id  # the padding is visible, because a decoder's mask is only causal
        if config.is_pooled and config.pooling in ("eos", "largest"):  # its count by row: two, one, none
            tokens[:2, 4], tokens[0, 7] = config.stack_vocab_size("decoder") - 1, config.stack_vocab_size("decoder") - 1
        inputs[name] = tokens
    if config.num_token_types:
        inputs["token_types"] = random.integers(0, config.num_token_types, inputs["tokens"].shape)
    return inputs


def theirs(model: Any, checkpoint: Checkpoint, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    config = checkpoint.config
    dtype = next(model.parameters()).dtype
    given = {name: torch.from_numpy(value) for name, value in inputs.items()}
    name = config.input_names[0]
    called = "pixel_values" if config.reads_pixels else "input_features" if config.reads_frames else "input_ids"
    named: dict[str, Any] = {called: given[name].to(dtype) if given[name].is_floating_point() else given[name]}
    if "target" in given:
        named["decoder_input_ids"] = given["target"]
    if (
        config.has_encoder and config.pad_id is not None and not config.reads_frames
    ) or config.target_mask == "causal-and-padding":
        named["attention_mask"] = torch.from_numpy(np.int64(inputs[config.input_names[0]] != config.pad_id))
    if "token_types" in given:
        named["token_type_ids"] = given["token_types"]
    with torch.no_grad():
        if config.head in ("logits", "classes"):
            said = model(**named)
            return as_numbers(next(said[name] for name in ("logits", "text_embeds", "image_embeds") if name in said))
        said = getattr(model, model.base_model_prefix, model)(**named)
        return as_numbers(said.pooler_output if config.head == "pooled" else said.last_hidden_state)


@contextmanager
def in_double_precision(case: Case, model: Any) -> Iterator[Any]:
    """Yield a copy of the model that computes everything in float64.

    transformers computes norms, angles, attention weights and buckets in float32 for every dtype of the model.
    `double()` therefore leaves float32 errors.
    """
    upcast = {"float32": torch.float64, "float": torch.float64, "FloatTensor": torch.DoubleTensor}
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        for module in (sys.modules[type(model).__module__], modeling_rope_utils):
            patch.setattr(module, "torch", SimpleNamespace(**vars(torch) | upcast))
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            double = new(case)
            if hasattr(double.config, "_experts_implementation"):  # grouped products do not support float64
                double.config._experts_implementation = "eager"
            assert not double.load_state_dict(learned(model), strict=False).unexpected_keys
            yield double
        finally:
            torch.set_default_dtype(before)


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_computes_what_transformers_computes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = made(case)
    model.save_pretrained(tmp_path)
    checkpoint = import_checkpoint(tmp_path, case.head)
    config = checkpoint.config.as_dict()
    assert {field: config[field] for field in case.expected} == case.expected

    inputs = tokens_of(checkpoint.config, case.length)
    oracle = forward_oracle(checkpoint.config, checkpoint.parameters, inputs)
    said = {"float32": theirs(model, checkpoint, inputs)}
    with in_double_precision(case, model) as double:
        said["float64"] = theirs(double, checkpoint, inputs)
    assert said["float64"].dtype == np.float64
    for dtype, value in said.items():
        error, budget = difference(value, oracle.expected["logits"]), oracle.budget("logits", dtype)
        assert share(error, budget) <= 1, f"{dtype} differs by {error:.3g}; expected at most {budget:.3g}"


@for_each("model_type", FAMILIES)
def test_defaults_of_missing_fields_are_those_of_transformers(model_type: str) -> None:
    theirs = transformers.CONFIG_MAPPING[model_type]()
    base = getattr(theirs, "default_theta", None)
    fields = {"rope_theta": base["global"] if isinstance(base, dict) else base} | vars(theirs)
    ours = {name: value for name, value in FAMILIES[model_type].defaults.items() if value is not None}
    shared = ours.keys() & fields.keys() - {"time_step_limit"}  # ours has the largest float32 for infinity
    if fields.get("use_sliding_window") is False:
        shared -= {"sliding_window"}  # transformers writes a window that is not used as None or 0
    assert {name: ours[name] for name in shared} == {name: fields[name] for name in shared}


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_a_port_is_checked_on_a_checkpoint(name: str, saved: Callable[[str], Path]) -> None:
    result = invoke("check", "transparity_pytorch.port:build", "--checkpoint", saved(name))
    assert result.exit_code == 0, result.output
    assert "agrees with" in result.stdout
    assert "fields that no forward pass depends on: " in " ".join(result.stdout.split())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("saved")
            made(CASES[name]).save_pretrained(folders[name])
        return folders[name]

    return folder


def edited(
    folder: Path, into: Path, fields: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text()) | dict(fields or {})
    (into / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not GONE}))
    both = {**load_file(folder / "model.safetensors"), **(tensors or {})}
    save_file({name: value for name, value in both.items() if value is not GONE}, into / "model.safetensors")
    return into


GONE = object()


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return one.config == other.config and all(
        np.array_equal(value, other.parameters[name]) for name, value in one.parameters.items()
    )


def test_fields_of_transformers_4_mean_the_same(saved: Callable[[str], Path], tmp_path: Path) -> None:
    llama, phi3 = (CASES[name].fields["rope_parameters"] for name in ("llama, scaled as in 3.1", "phi3, long"))
    scaling = {name: value for name, value in llama.items() if name not in ("rope_theta", "rope_type")}
    factors = {name: phi3[name] for name in ("short_factor", "long_factor")}
    linear = {"rope_scaling": {"type": "linear", "factor": 3.0}}
    for name, older in (
        ("llama, scaled as in 3.1", {"rope_theta": 30.0, "rope_scaling": {"type": "llama3"} | scaling}),
        ("phi3, long", {"rope_theta": 30.0, "rope_scaling": {"type": "su"} | factors}),
        ("gemma3", {"rope_theta": 500.0, "rope_local_base_freq": 30.0} | linear),
        ("t5, gated", {"scale_decoder_outputs": GONE, "tie_word_embeddings": False}),
    ):
        folder = edited(saved(name), tmp_path / name, {"rope_parameters": GONE} | older)
        assert same(import_checkpoint(folder), import_checkpoint(saved(name))), name


@pytest.mark.parametrize("name", ["bert, without a pooler", "gpt2", "llama", "bart", "opt"])
def test_a_prefix_is_optional(name: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    prefix = {"bert, without a pooler": "bert.", "gpt2": "transformer."}.get(name, "model.")
    tensors = load_file(saved(name) / "model.safetensors")
    bare: dict[str, Any] = {tensor: GONE for tensor in tensors if tensor.startswith(prefix)}
    bare |= {tensor.removeprefix(prefix): value for tensor, value in tensors.items()}
    assert same(import_checkpoint(edited(saved(name), tmp_path, tensors=bare)), import_checkpoint(saved(name)))


def test_a_stored_tied_head_has_to_equal_the_embedding(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = saved("gpt2")
    table = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    assert same(
        import_checkpoint(edited(folder, tmp_path / "same", tensors={"lm_head.weight": table})),
        import_checkpoint(folder),
    )
    other = edited(folder, tmp_path / "other", tensors={"lm_head.weight": table + 1})
    with refused(CheckpointError, "'lm_head.weight' and 'transformer.wte.weight' of"):
        import_checkpoint(other)


def test_ignored_fields_and_tensors_are_reported(saved: Callable[[str], Path], tmp_path: Path) -> None:
    more = {"fancy_attention": 3, "eos_token_id": [2, 5], "pad_token_id": -1, "rms_norm_eps": GONE}
    zeros = np.zeros(2, np.float32)
    tensors = {"score.weight": zeros, "model.layers.7.mlp.up_proj.weight": zeros}
    checkpoint = import_checkpoint(edited(saved("llama"), tmp_path, more, tensors))
    remarks = dict(remark.split(": ", 1) for remark in checkpoint.remarks)
    assert remarks["fields that are ignored"] == "fancy_attention (3), pad_token_id (-1), eos_token_id ([2, 5])"
    assert remarks["missing fields, with the defaults of transformers"] == "rms_norm_eps 1e-06"
    assert remarks["tensors that are not used"] == "model.layers.7.mlp.up_proj.weight, score.weight"
    assert "use_cache" in remarks["fields that no forward pass depends on"].split(", ")
    assert (checkpoint.config.eos_id, checkpoint.config.pad_id) == (2, None)
    checkpoint = import_checkpoint(saved("bert, without a pooler"), "hidden")
    assert "cls.predictions.transform.dense.weight" in str(checkpoint.remarks)
    assert "head: hidden" in checkpoint.remarks


@pytest.mark.parametrize("what", REFUSED)
def test_fields_that_would_change_numbers_are_refused(what: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    name, fields, message = REFUSED[what]
    folder = edited(saved(name), tmp_path, {key: GONE if value == "gone" else value for key, value in fields.items()})
    with refused(CheckpointError, f"{folder / 'config.json'} "):
        import_checkpoint(folder)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        import_checkpoint(folder)


def test_tensors_that_do_not_fit_are_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    name, weights = "model.layers.1.mlp.up_proj.weight", tmp_path / "model.safetensors"
    for value, message in (
        (GONE, f"{tmp_path} has no tensor 'layers.1.mlp.up_proj.weight'; expected this tensor for"),
        (np.zeros((16, 22), np.float32), f"{name!r} of {weights} has the shape (16, 22)"),
        (np.zeros((22, 16), np.int8), f"{name!r} of {weights} has the dtype I8; expected one of F32"),
        (
            np.full((22, 16), np.nan, np.float32),
            f"{tmp_path} cannot be imported: Parameter 'decoder.layers.1.feed_forward.up.weight'",
        ),
    ):
        with refused(CheckpointError, message):
            import_checkpoint(edited(saved("llama"), tmp_path, tensors={name: value}))
    for case, head, message in (
        ("bert, without a pooler", "pooled", " has no tensor 'pooler.dense.weight'; expected"),
        ("llama", "hidden", "/config.json cannot be imported: the head 'hidden' was requested"),
        ("bert", "logits", "/config.json cannot be imported: the head 'logits' was requested"),
    ):
        with refused(CheckpointError, f"{saved(case)}{message}"):
            import_checkpoint(saved(case), head)


def test_folders_without_a_checkpoint_are_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with refused(CheckpointError, f"{nowhere} is not a folder; expected a folder with config.json"):
        import_checkpoint(nowhere)
    with refused(CheckpointError, f"{tmp_path} has no config.json; expected"):
        import_checkpoint(tmp_path)
    config = tmp_path / "config.json"
    not_json = "is not JSON: "
    for text, message in (("{", not_json), ("[1]", "is [1]; expected an object"), ('{"a": NaN}', not_json)):
        config.write_text(text)
        with refused(TransparityError, f"{config} {message}"):
            import_checkpoint(tmp_path)
    config.write_text((saved("llama") / "config.json").read_text())
    with refused(CheckpointError, f"{tmp_path} has no model.safetensors; expected"):
        import_checkpoint(tmp_path)
    pickle = tmp_path / "pytorch_model.bin"
    pickle.write_bytes(b"\x80\x04N.")
    for given in (tmp_path, pickle):
        with refused(CheckpointError, f"{pickle} is a pickle, and reading it can run any code; expected"):
            import_checkpoint(given)


def test_invalid_files_are_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = edited(saved("llama"), tmp_path)
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    for names, message in (
        ({"a": "more.safetensors"}, f"{folder} has no more.safetensors, which"),
        ({"a": "../model.safetensors"}, f"{index} names the file '../model.safetensors'; expected"),
        (["a"], f"{index} has no valid weight_map; expected"),
    ):
        index.write_text(json.dumps({"weight_map": names}))
        with refused(CheckpointError, message):
            import_checkpoint(folder)
    for name in ("one.safetensors", "two.safetensors"):
        (folder / name).write_bytes(weights.read_bytes())
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with refused(CheckpointError, f"{folder} has model.safetensors, and an index of other files; expected only one"):
        import_checkpoint(folder)
    index.unlink()
    (folder / "model.safetensors").unlink()
    with refused(CheckpointError, f"{folder} has one.safetensors, two.safetensors and no model.safetensors.index.json"):
        import_checkpoint(folder)
    weights.write_bytes(b"no tensors")
    with refused(CheckpointError, f"{weights} cannot be read as a safetensors file: "):
        import_checkpoint(folder)


def test_the_command_imports(saved: Callable[[str], Path], tmp_path: Path) -> None:
    result = invoke("import", saved("gemma2"), tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert "gemma2, decoder, " in " ".join(result.stdout.split())
    checkpoint = import_checkpoint(saved("gemma2"))
    config = TransformerConfig.from_json((tmp_path / "new" / "config.json").read_text())
    parameters = load_parameters(tmp_path / "new" / "parameters.safetensors", config)
    assert same(dataclasses.replace(checkpoint, config=config, parameters=parameters), checkpoint)
    assert invoke("import", saved("gemma2"), tmp_path / "new").exit_code == 0, (
        "the command must overwrite its own output"
    )


def test_the_command_refuses_in_one_sentence(saved: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    for arguments, message in (
        (("import", tmp_path, tmp_path / "new"), "is not JSON"),
        (("import", saved("llama"), tmp_path), "has other files in it; expected an empty folder"),
        (("import", saved("llama"), saved("gemma2")), "has other files in it; expected an empty folder"),
        (("import", saved("llama"), tmp_path / "config.json"), "cannot be written"),
        (("import", saved("llama"), tmp_path / "new", "--head", "pooled"), "this model returns logits"),
        (("check", "transparity_numpy.port:build", "--checkpoint", tmp_path), "is not JSON"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stderr.endswith(".\n")


def falls(config: TransformerConfig, parameters: Any) -> Callable[..., Any]:
    raise AssertionError("the port must not be built")


def test_given_parameters_have_to_be_those_of_the_configuration(saved: Callable[[str], Path]) -> None:
    checkpoint = import_checkpoint(saved("llama"))
    with refused(PortError, "check() was given parameters without their config; pass the config"):
        check(falls, preset="notes-lm", parameters=checkpoint.parameters)
    with refused(ParameterError, "Parameter 'head.weight' is missing"):
        fewer = {name: value for name, value in checkpoint.parameters.items() if name != "head.weight"}
        check(falls, config=checkpoint.config, parameters=fewer)
