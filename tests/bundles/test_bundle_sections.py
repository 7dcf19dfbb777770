import dataclasses
import functools
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.bundles.test_bundle import SMALL
from tests.helpers import invoke, refused, table, tiny

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity.sampling import Sampling
from transparity.training import Training
from transparity_conformance.capabilities.faults import CACHE_FAULTS, LOSS_FAULTS
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checking.command import check_command
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.exchange.bundle import Bundle
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.manifest import SECTIONS
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.report.report import Divergence, Report
from transparity_pytorch.port import build

Tensors = dict[str, np.ndarray]

TARGETS = "targets.safetensors"


def requests_of(folder: Path, section: str) -> dict[str, tuple[dict[str, Any], Tensors]]:
    manifest = json.loads((folder / "manifest.json").read_text())["capabilities"]
    tensors = load_file(folder / f"{section}.safetensors") if manifest[section]["inputs"] else {}
    return {
        key: (fields, {name.removeprefix(f"{key}/"): value for name, value in tensors.items() if f"{key}/" in name})
        for key, fields in manifest[section]["requests"].items()
    }


def answer(folder: Path) -> Tensors:
    """Return a correct port's tensors, computed only from the bundle's files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= manifest.get("capabilities", {})
    config = TransformerConfig.from_json((folder / "config.json").read_text())
    parameters, inputs = load_file(folder / "parameters.safetensors"), load_file(folder / "inputs.safetensors")
    asked = {
        name: shape for section in SECTIONS for name, shape in manifest.get(section, {"actual": {}})["actual"].items()
    }
    forward = build(config, parameters)
    said: dict[str, Any] = {}
    targets = load_file(folder / TARGETS) if "loss" in manifest else {}
    for probe in manifest["probes"]:
        tokens: dict[str, Any] = {name: inputs[f"{probe}/{name}"] for name in config.input_names}
        said[f"{probe}/logits"] = forward.logits(**tokens)
        if f"{probe}/loss" in asked:
            loss, gradients = forward.loss_and_gradients(targets[f"{probe}/targets"], **tokens)
            found = {f"{probe}/gradient.{name}": value for name, value in gradients.items()}
            said |= {f"{probe}/loss": loss} | {name: value for name, value in found.items() if name in asked}
        if "steps" in manifest:
            said |= steps(forward, probe, tokens, config, requests_of(folder, "steps"))
    for section in ("generation", "beams"):
        for key, (fields, own) in requests_of(folder, section).items() if section in manifest else ():
            said |= generate(config, parameters, key, fields, own)
    for key, (fields, own) in requests_of(folder, "training").items() if "training" in manifest else ():
        said |= trained(key, fields, own)
    for key, (_, own) in requests_of(folder, "packed").items() if "packed" in manifest else ():
        said[f"{key}/logits"] = each_alone(forward, own["tokens"], own["documents"])
    for key, (fields, own) in requests_of(folder, "adapters").items() if "adapters" in manifest else ():
        tokens = {name: inputs[f"mixed/{name}"] for name in config.input_names}
        said[f"{key}/logits"] = build(config, merged(parameters, fields, own)).logits(**tokens)
    for name, value in said.items():
        said[name] = as_numbers(value).astype(np.int32 if name.endswith("/tokens") else np.float32)
        if name.endswith("/tokens"):
            missing = asked[name][1] - value.shape[1]
            said[name] = np.pad(said[name], ((0, 0), (0, missing)), constant_values=-1)
    return said


def each_alone(forward: Any, tokens: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return np.stack(
        [
            np.concatenate([forward.logits(tokens=row[None, of == number])[0] for number in range(of.max() + 1)])
            for row, of in zip(tokens, documents, strict=True)
        ]
    )


def merged(parameters: Tensors, fields: dict[str, Any], own: Tensors) -> Tensors:
    found = dict(parameters)
    for name in [name.removesuffix(".lora_A") for name in own if name.endswith(".lora_A")]:
        down, up = own[f"{name}.lora_A"], own[f"{name}.lora_B"]
        scale = fields["alpha"] / (len(down) ** 0.5 if fields["rank_stabilized"] else len(down))
        found[f"{name}.weight"] = (parameters[f"{name}.weight"] + scale * (up @ down)).astype(np.float32)
    return found


def steps(forward: Any, probe: str, tokens: dict[str, Any], config: TransformerConfig, requests: Any) -> dict[str, Any]:
    said: dict[str, Any] = {}
    source = {name: value for name, value in tokens.items() if name == "source"}
    for key, (fields, _) in requests.items():
        cache, begin, given = None, 0, source
        for index, size in enumerate(fields["sizes"] if key.startswith(f"{probe}/") else ()):
            chunk = tokens[config.input_names[-1]][:, begin : begin + size]
            said[f"{key}.{index}"], cache = forward.step(chunk, cache, **given)
            begin, given = begin + size, {}
    return said


def generate(
    config: TransformerConfig, parameters: Tensors, key: str, fields: dict[str, Any], own: Tensors
) -> dict[str, Any]:
    changed = {name.removeprefix("parameters/"): value for name, value in own.items() if "parameters/" in name}
    forward = build(dataclasses.replace(config, eos_id=fields["eos_id"]), parameters | changed)
    named: dict[str, Any] = {name: own[name] for name in ("source", "lengths", "uniforms") if name in own}
    named |= {"sampling": Sampling(**fields["sampling"])} if "sampling" in fields else {}
    if "beams" not in fields:
        return {f"{key}/tokens": forward.generate(own["prompt"], fields["max_new_tokens"], **named)}
    named["length_penalty"] = fields["length_penalty"]
    tokens, scores = forward.beam_search(own["prompt"], fields["max_new_tokens"], fields["beams"], **named)
    return {f"{key}/tokens": tokens, f"{key}/scores": scores}


def trained(key: str, fields: dict[str, Any], own: Tensors) -> dict[str, Any]:
    config = TransformerConfig.from_json(json.dumps(fields["config"]))
    training = Training(**fields["training"] | {"betas": tuple(fields["training"]["betas"])})
    begins = "parameters/"
    parameters = {name.removeprefix(begins): value for name, value in own.items() if name.startswith(begins)}
    batches: dict[str, Tensors] = {}
    for name, value in own.items():
        if name.startswith("batches/"):
            _, index, of = name.split("/")
            batches.setdefault(index, {})[of] = value
    losses, became = build(config, parameters).train([batches[index] for index in sorted(batches)], training)
    return {f"{key}/losses": np.array([float(loss) for loss in losses])} | {
        f"{key}/{name}": value for name, value in became.items()
    }


@functools.cache
def _exported(folder: Path, name: str) -> tuple[Bundle, Tensors]:
    export_bundle(preset(name).resized(embed_dim=6, num_heads=2), folder / name, name=name, sections=SECTIONS)
    return read_bundle(folder / name), answer(folder / name)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Bundle, Tensors]]:
    return functools.partial(_exported, tmp_path_factory.mktemp("exported"))


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., Report]:
    def judge(bundle: Bundle, tensors: Tensors, **how: Any) -> Report:
        save_file(tensors, tmp_path / "actual.safetensors")
        return judge_bundle(bundle, read_actual(tmp_path / "actual.safetensors", bundle), **how)

    return judge


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "bundle"
    export_bundle(SMALL, folder, name="translation", sections=SECTIONS)
    return folder


@pytest.fixture(scope="module")
def answered(small: Path) -> tuple[Bundle, Tensors]:
    return read_bundle(small), answer(small)


@pytest.fixture
def folder(tmp_path: Path, small: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "bundle"))


def verdicts(report: Report) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in report.claims}


def the_fault(report: Report) -> Divergence:
    (fault,) = report.faults
    assert (report.verdict, report.first_divergence) == ("diverges", fault.where)
    return fault


def test_a_section_adds_to_the_manifest_and_changes_no_file_that_was_there(tmp_path: Path, small: Path) -> None:
    export_bundle(SMALL, tmp_path / "plain", name="translation")
    plain, more = (json.loads((folder / "manifest.json").read_text()) for folder in (tmp_path / "plain", small))
    assert list(plain) == ["format", "name", "dtype", "probes", "sha256"]
    assert set(more) - set(plain) == {"capabilities"} and tuple(more["capabilities"]) == SECTIONS
    more_files = {path.name for path in small.iterdir()} - {path.name for path in (tmp_path / "plain").iterdir()}
    assert more_files == {row.file for row in CAPABILITIES.values() if row.file}
    for path in (tmp_path / "plain").iterdir():
        if path.name != "manifest.json":
            assert path.read_bytes() == (small / path.name).read_bytes()
    for field in ("format", "name", "dtype", "probes"):
        assert more[field] == plain[field]


def test_a_bundle_that_is_written_again_without_a_section_has_none(folder: Path) -> None:
    export_bundle(SMALL, folder, name="translation")
    assert not (folder / TARGETS).exists()
    assert not read_bundle(folder).capabilities


@pytest.mark.long
def test_a_right_port_agrees(exported: Callable[..., Any], judged: Callable[..., Report]) -> None:
    bundle, tensors = exported("notes-lm")
    report = judged(bundle, tensors)
    assert report.verdict == "agrees"
    claims = verdicts(report)
    ways = [way for row in CAPABILITIES.values() for way in row.ways if not way.is_optional]
    assert {way.claim for way in ways} - {"resized"} <= set(claims)
    assert set(claims.values()) == {"agrees"}
    assert "activations: not returned by the port" in report.not_compared[-1]


def gradients_of(tensors: Tensors, change: Callable[[np.ndarray], np.ndarray], part: str = "gradient.") -> Tensors:
    return {name: change(value) if "/gradient." in name and part in name else value for name, value in tensors.items()}


def without(tensors: Tensors, part: str) -> Tensors:
    return {name: value for name, value in tensors.items() if part not in f"{name}$"}


def with_a_wrong_loss(bundle: Bundle, tensors: Tensors) -> Tensors:
    losses = {
        f"{key}/loss": LOSS_FAULTS[0].simulate(tensors[f"{key}/logits"], np.roll(probe.inputs["target"], -1, 1), None)
        for key, probe in bundle.probes.items()
    }
    return {name: value for name, value in tensors.items() if name.endswith("/logits")} | losses


def with_a_wrong_cache(bundle: Bundle, tensors: Tensors) -> Tensors:
    """Replace the logits of all chunks by logits of a port whose positions start at 0 in every chunk."""
    probe, said = bundle.probes["mixed"], dict(tensors)
    sizes: dict[str, list[int]] = {}
    for name, shape in bundle.asked.items():
        if "/step." in name:
            sizes.setdefault(name.split(".")[1], []).append(shape[1])
    for way, chunks in sizes.items():
        logits = CACHE_FAULTS[0].simulate(probe.config, probe.exact, probe.inputs, chunks)
        pieces = np.split(logits, np.cumsum(chunks)[:-1], axis=1)
        said |= {f"mixed/step.{way}.{index}": np.ascontiguousarray(piece) for index, piece in enumerate(pieces)}
    return said


def in_bundle(change: Callable[[Tensors], Tensors]) -> Callable[[Bundle, Tensors], Tensors]:
    return lambda _, tensors: change(tensors)


STEP = "mixed/step.in_uneven_chunks.1"
UNEXPLAINED = ""

WRONG: dict[str, tuple[Callable[[Bundle, Tensors], Tensors], str, str]] = {
    "loss": (with_a_wrong_loss, "loss", LOSS_FAULTS[0].id),
    "cache": (with_a_wrong_cache, "step", CACHE_FAULTS[0].id),
    "no number": (in_bundle(lambda all_: all_ | {STEP: all_[STEP] * np.nan}), "step", UNEXPLAINED),
    "no gradients": (
        in_bundle(lambda all_: without(all_, "gradient.encoder")),
        "gradient.encoder.layers.1.feed_forward_norm.bias",
        "gradient-missing",
    ),
    "infinite gradients": (
        in_bundle(lambda all_: gradients_of(all_, lambda value: value + np.inf)),
        "gradient.head.bias",
        UNEXPLAINED,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_file_is_named_as_in_a_port_here(
    name: str, exported: Callable[..., Any], judged: Callable[..., Report]
) -> None:
    bundle, tensors = exported("translation")
    change, where, cause = WRONG[name]
    fault = the_fault(judged(bundle, change(bundle, tensors)))
    assert (fault.where, [found.mistake for found in fault.causes]) == (where, [cause] if cause else [])


@pytest.mark.long
def test_the_gradients_of_a_wrong_loss_are_held_to_that_loss(
    exported: Callable[..., Any], judged: Callable[..., Report]
) -> None:
    bundle, tensors = exported("notes-lm")
    counted = {key: int((probe.inputs["tokens"] != bundle.config.pad_id).sum()) for key, probe in bundle.probes.items()}
    summed = gradients_of(tensors, lambda value: value * np.float32(counted["mixed"]))
    summed |= {f"{key}/loss": np.asarray(tensors[f"{key}/loss"] * counted[key]) for key in counted}
    report = judged(bundle, summed)
    assert the_fault(report).causes[0].says == "the loss is a sum over the targets, not their mean"
    assert verdicts(report)["gradients"] == "agrees"


LEFT_OUT: dict[str, list[str]] = table(__file__, "refused.toml")["left_out"]


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_was_not_written_is_listed_as_not_compared(
    left_out: str, answered: tuple[Bundle, Tensors], judged: Callable[..., Report]
) -> None:
    bundle, tensors = answered
    report = judged(bundle, without(tensors, left_out))
    assert report.verdict == ("inconclusive" if "logits" in left_out else "agrees")
    assert [line for line in report.not_compared[:-1] if not line.startswith("packed:")] == LEFT_OUT[left_out]


ENCODER = tiny(architecture="encoder", source_vocab_size=5, num_encoder_layers=1)
NOT_ASKED: list[tuple[str, TransformerConfig, str, list[str]]] = [
    (
        "walkthrough",
        preset("walkthrough").resized(),
        "float32",
        [f"{claim}: masked keys keep a nonzero weight in this model" for claim in ("step", "generate.lengths")],
    ),
    ("config", ENCODER, "float32", ["step: an encoder without a decoder generates no tokens"]),
    (
        "translation",
        SMALL,
        "bfloat16",
        [
            "gradients: not compared in bfloat16, whose rounding is too coarse",
            "train: not compared in bfloat16, whose rounding is too coarse",
            "beam_search: not compared in bfloat16: its rounding makes",
        ],
    ),
]


def test_nothing_is_asked_for_that_cannot_be_compared(tmp_path: Path) -> None:
    for name, config, dtype, lines in NOT_ASKED:
        export_bundle(config, tmp_path, name=name, dtype=dtype, sections=SECTIONS)
        bundle = read_bundle(tmp_path)
        report = judge_bundle(bundle, read_actual(tmp_path / "expected.safetensors", bundle))
        assert report.verdict == "agrees"
        for says in lines:
            claim = says.partition(":")[0].rstrip("s")
            assert not [asked for asked in bundle.asked if f"/{claim}." in asked or asked.startswith(f"{claim}.")]
            assert any(line.startswith(says) for line in report.not_compared)


def test_without_a_section_its_tensors_do_not_belong_there(tmp_path: Path) -> None:
    export_bundle(SMALL, tmp_path)
    actual = tmp_path / "actual.safetensors"
    save_file(answer(tmp_path) | {"mixed/loss": np.array(1.0)}, actual)
    result = invoke("compare", tmp_path, actual)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"{actual} has the unexpected tensor 'mixed/loss'" in " ".join(result.stderr.split())
    with refused(
        BundleError, "A bundle has no section 'caches'; expected one of loss, gradients, generation, beams, steps"
    ):
        export_bundle(SMALL, tmp_path, sections=["caches"])


PROGRAM = f"""
import pathlib, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
from test_bundle_sections import answer, without
from safetensors.numpy import save_file
bundle, actual = map(pathlib.Path, sys.argv[1:])
tensors = answer(bundle)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def command(rest: str) -> str:
        (tmp_path / "port.py").write_text(PROGRAM + rest)
        return shlex.join([sys.executable, str(tmp_path / "port.py")])

    return command


def test_what_a_program_that_crashed_did_not_write_is_no_fault(program: Callable[[str], str]) -> None:
    config = preset("notes-lm").resized(embed_dim=6, num_heads=2, num_decoder_layers=1)
    crashes = program("save_file(without(tensors, 'gradient.head'), actual)\nsys.exit('no more')")
    report = check_command(crashes, "notes-lm", config, sections=["gradients"])
    assert (report.verdict, report.faults) == ("inconclusive", ())


def test_export_writes_the_precision_and_says_the_probes(tmp_path: Path) -> None:
    result = invoke("export", "notes-lm", folder := tmp_path / "bundle", "--dtype", "bfloat16")
    bundle = read_bundle(folder)
    said = f"{len(bundle.probes)} probes of notes-lm ({', '.join(bundle.probes)})"
    assert result.exit_code == 0 and said in " ".join(result.stdout.split())
    assert json.loads((folder / "manifest.json").read_text())["dtype"] == bundle.dtype == "bfloat16"


def test_export_says_what_the_sections_are_for(tmp_path: Path) -> None:
    result = invoke("export", "walkthrough", tmp_path / "bundle", "--gradients", "--steps")
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "loss: the loss is the mean of -log softmax(logits)[target]" in said
    assert "gradients: the gradients of the first probe's loss with respect to every parameter" in said
    assert "steps: masked keys keep a nonzero weight in this model" in said
