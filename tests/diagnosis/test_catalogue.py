import contextlib
import dataclasses
import importlib
import itertools
import pkgutil
from collections import Counter

import numpy as np
import pytest

from meta.pool.port import pool, probes_called
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS, preset
from transparity.taps import tap_shapes
from transparity_conformance import catalogue
from transparity_conformance.catalogue import faults_at
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.catalogue.parameters import of_layer
from transparity_conformance.catalogue.rotary import rotated
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.oracle.cases import CASES, MODELS
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.causes import meanings


def test_every_file_of_faults_is_in_the_catalogue() -> None:
    known = {faults.__module__ for faults in (*catalogue.OF_A_SITE, catalogue.sharding.faults)}
    names = [f"{catalogue.__name__}.{module.name}" for module in pkgutil.iter_modules(catalogue.__path__)]
    makers = {name for name in names if hasattr(importlib.import_module(name), "faults")}
    assert makers <= known, f"add {makers - known} to OF_A_SITE in catalogue/__init__.py"


@pytest.mark.parametrize("case", CASES)
def test_a_fault_has_a_name_of_its_own_and_changes_something(case: str) -> None:
    config = CASES[case]
    for site in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)):
        found = list(catalogue.faults_at(config, site))
        shared = [name for name, count in Counter((fault.id, fault.variant) for fault in found).items() if count > 1]
        assert not shared, f"{site}: several faults have the names {shared}"
        acts = ("fields", "alter", "patch", "formula", "downstream")
        idle = [fault for fault in found if not any(getattr(fault, name) for name in acts)]
        assert not idle, f"{site}: {[fault.id for fault in idle]} change nothing"


def test_experts_of_some_layers_only_have_faults_that_act() -> None:
    own = {"experts": {"num_experts": 5, "feed_forward_dim": 20}}
    config = dataclasses.replace(example_config("qwen3_moe"), num_experts=0, feed_forward_dim=44, layer_overrides=own)
    probe, site = next(iter(probes_of(config, "few").values())), "decoder.layers.1.feed_forward.output"
    of_experts = [fault for fault in faults_at(config, site) if fault.id == "expert-order"]
    assert len(of_experts) == 6
    for fault in of_experts:
        assert np.abs(walk(probe, {}, (Hypothesis(fault, (site,)),))["logits"] - probe.oracle.expected["logits"]).max()


def test_a_fault_of_rotary_positions_changes_long_texts() -> None:
    config = dataclasses.replace(MODELS["llama"], max_length=300)
    x = np.random.default_rng(0).normal(size=(1, config.num_heads, config.max_length, config.head_dim))
    found = catalogue.faults_at(config, "decoder.layers.0.self_attention.query_rotated")
    moved = [fault for fault in found if fault.settings.keys() & {"moved", "along", "shift"}]
    assert len(moved) > 8
    for fault in moved:
        assert not np.array_equal(rotated(fault.settings, config, x), rotated({}, config, x)), fault.variant


@pytest.mark.parametrize("case", ["qwen3-next", "deepseek"])
def test_a_fault_at_several_taps_has_the_descriptions_of_all_these_taps(case: str) -> None:
    config = CASES[case]
    sites = list(tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)))
    said = {(site, each.id, each.variant): each.description for site in sites for each in faults_at(config, site)}
    for hypothesis in catalogue.hypotheses(config, sites):
        fault = hypothesis.fault
        told = {said[site, fault.id, fault.variant] for site in hypothesis.sites}
        assert {*fault.description.split("; ")} == {part for each in told for part in each.split("; ")}, hypothesis


def test_every_sentence_is_said_of_some_fault() -> None:
    """Build all faults, because a fault without a sentence raises."""
    said = set()
    packed, batch = MODELS["gpt-oss"].with_sizes(embed_dim=32), preset("notes-lm").resized(norm="batch")
    of_words = dataclasses.replace(MODELS["masked-bert"], activation="relu")
    even, last = MODELS["t5"].with_sizes(num_heads=2), dataclasses.replace(MODELS["clip-text"], pooling="last")
    wide = dataclasses.replace(MODELS["deepseek"], experts_per_token=MODELS["deepseek"].topk_groups + 1)
    presets = [preset(name).resized() for name in PRESETS]
    for config in (*MODELS.values(), *presets, packed, batch, of_words, even, last, wide):
        for site in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)):
            every = [*catalogue.faults_at(config, site, ranks=2), *catalogue.masks.conventions(config, site)]
            said |= {(fault.id, fault.variant) for fault in every}
        said |= {(each.fault.id, each.fault.variant) for each in catalogue.whole_model(config)}
    known = {(name, variant) for name, meaning in meanings().items() for variant in meaning.says if "{" not in variant}
    assert known - said == set(), "causes.toml has sentences for faults that do not exist"


@pytest.mark.parametrize("case", MODELS)
def test_a_layer_that_shares_its_weights_has_every_one_of_them(case: str) -> None:
    config = MODELS[case]
    zeros = {name: np.zeros(shape) for name, shape in parameter_shapes(config).items()}
    for stack in config.stacks:
        layer = f"{stack}.layers.{config.stack_num_layers(stack) - 1}."
        own = {name for name in zeros if name.startswith(layer) and "running_" not in name}
        for site in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)):
            if site.startswith(layer):
                own -= set(of_layer(config.stack_num_layers(stack) - 1, config, zeros, site))
        assert not own, f"catalogue/parameters.py: {own} have no effect on any tap"


def test_every_fault_is_simulated() -> None:
    for case, config in ({case: preset(case).resized() for case in PRESETS} | MODELS).items():
        sites = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3))
        known = {fault.id for site in sites for fault in catalogue.faults_at(config, site)}
        forgotten = known - {name for bug in pool().values() for name in bug.causes}
        assert not forgotten, (
            f"{case}: add bugs with the causes {sorted(forgotten)} to conformance/meta/independent/bugs"
        )


@pytest.mark.parametrize("case", CASES)
def test_the_reference_runs_with_every_fault(case: str) -> None:
    """Expect no exception in a fault's own code, because the search would count such a fault as impossible.

    On the probe `square`, no fault is impossible.
    """
    config = CASES[case]
    config = dataclasses.replace(config, max_length=300) if config.positions == "rotary" else config
    first, square = next(iter(probes_of(config, case).values())), probes_called(case)["square"]
    for probe in (first, square):
        taps = list(probe.oracle.expected)
        every = catalogue.widest([*catalogue.hypotheses(probe.config, taps), *catalogue.whole_model(probe.config)])
        raised = {str(each): error for each in every if (error := raised_with(each, probe))}
        assert not {name: error for name, error in raised.items() if probe is square or type(error) is not Impossible}


def raised_with(fault: Hypothesis, probe: Probe) -> BaseException | None:
    """Return the error of a fault's code, `Impossible` if the code raised this error on purpose, or None."""
    try:
        logits = walk(probe, {}, (fault,))["logits"]
    except Impossible as error:
        return error.__cause__ or error
    assert logits.dtype == np.float64 and logits.shape == probe.oracle.expected["logits"].shape, str(fault)
    return None


@pytest.mark.parametrize("case", ["gemma", "bloom"])
def test_any_two_faults_of_a_formula_are_made_together_or_exclude_each_other(case: str) -> None:
    probe = next(iter(probes_of(CASES[case], case).values()))
    for site in ("decoder.layers.0.self_attention.scores", "decoder.layers.0.self_attention_norm", "logits"):
        made = [fault for fault in catalogue.faults_at(probe.config, site) if fault.formula is not None]
        for one, other in itertools.combinations(made, 2):
            with contextlib.suppress(Impossible):
                pair = Hypothesis(one, (site,)), Hypothesis(other, (site,))
                assert walk(probe, {}, pair, until=site)[site].shape == probe.oracle.expected[site].shape
