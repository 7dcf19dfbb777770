"""Find the configuration of a module: sizes from its parameters, and other fields from the values of its operations."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.diagnosis.walk import Impossible, under_hypothesis
from transparity_conformance.identify.fitting import inputs
from transparity_conformance.identify.fitting.answer import SIZES, Fit, changed, nearest, templates
from transparity_conformance.identify.fitting.configuration import configuration_of
from transparity_conformance.identify.fitting.masks import is_causal
from transparity_conformance.identify.fitting.parts import parts_of
from transparity_conformance.identify.fitting.structure import softmaxes
from transparity_conformance.identify.fitting.subject import (
    FitError,
    FittedModel,
    ForeignError,
    Loops,
    ModuleError,
    RecordedCall,
)
from transparity_conformance.identify.fitting.values.convolutions import kernels_over_time
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.norms import USUAL_EPS
from transparity_conformance.identify.fitting.values.numbers import difference, minimize, settle
from transparity_conformance.identify.fitting.values.scores import scores_of
from transparity_conformance.identify.proof import Proof, own_probes, proved, write_through
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.reach.features import exercised
from transparity_conformance.oracle.reach.models import reach_of
from transparity_conformance.report.comparison import gap
from transparity_conformance.running.adapters.model import made_by
from transparity_conformance.running.frameworks.modules import kept
from transparity_conformance.running.process.isolation import isolated_build
from transparity_numpy.transformer import transformer

LEAST_EPS, MOST_EPS = 1e-14, 1e-1
"""The range of eps if the first calls do not determine eps."""


def fit_port(spec: str, timeout: float | None = None) -> Fit:
    """Find the configuration of the module that `path/to/file.py:Model` creates, in a separate process. Raise
    `PortError` if there is no module, or if the process sends no answer within `timeout` seconds."""
    build = isolated_build(spec, timeout, "")
    try:
        return fitted(FittedModel(build.made(None, {})))
    finally:
        build.process.stop()


def fit(module: Any, seed: int = 0) -> Fit:
    """Find the configuration of a module, or of the module that a function without arguments returns. The module's
    weights stay unchanged. Raise a `FitError` if no configuration fits; the error names the first part without a
    configuration field."""
    with kept(module):
        return fitted(FittedModel(made_by(module, None), seed))


def fitted(subject: FittedModel) -> Fit:
    """Return the first confirmed configuration, or the configuration with the smallest error. Try several readings:
    with and without loops over heads or rows, queries or keys first. If all fail, raise the error of the reading that
    found the most fields."""
    errors: list[FitError] = []
    made: list[Fit] = []
    for loops in get_args(Loops):
        subject.loops = loops
        for each in _readings(subject, errors):
            made.append(each)
            if each.is_confirmed:
                return each
        if made:
            return min(made, key=lambda each: each.share)
        if isinstance(errors[0], ForeignError):
            break
    raise max(errors, key=lambda error: len(error.known))


@contextlib.contextmanager
def _collected(errors: list[FitError], known: Mapping[str, Any]) -> Iterator[None]:
    try:
        with under_hypothesis(PortError):
            yield
        return
    except Impossible as failed:
        error = FitError("No configuration fits the module: the reference cannot combine the recognized parts.")
        error.__cause__ = failed
    except FitError as failed:
        error = failed
    error.known = error.known or known
    errors.append(error)


def _readings(subject: FittedModel, errors: list[FitError]) -> Iterator[Fit]:
    """Yield the fits of two assumptions: queries before keys, and keys before queries."""
    calls, sizes_found = list[RecordedCall](), dict[str, Any]()
    with _collected(errors, sizes_found):
        sizes, plain = inputs.first_answer(subject)
        if "pixels" in plain:
            inputs.count_patches(subject, plain["pixels"])
        subject.widen(plain)
        heard = subject.hear(plain)
        causal, longest = _causal(subject, heard), inputs.longest_taken(subject, plain)
        sizes_found |= _sizes(subject, heard, sizes, causal)
        given = [inputs.with_further(subject, inputs.paddings(plain, sizes), sizes)]
        given += [inputs.masked(plain)] if "attention_mask" in subject.names else []
        calls = [heard, *map(subject.hear, given)]
    for keys_first in (False, True) if calls else ():
        found = FoundFields(dict(sizes_found))
        with _collected(errors, found.fields):
            configuration_of(found, subject, parts_of(subject, heard, causal, keys_first=keys_first), calls)
            if "max_length" in found.untold:
                found.fields["max_length"] = longest
            made = _confirmed(subject, found, calls)
            used = found.used.union(
                name
                for name, value in subject.values.items()
                if any(np.may_share_memory(value, each) for each in found.parameters.values())
            )
            unused = tuple(name for name in subject.values if name not in used)
            yield dataclasses.replace(made, unused=unused)
        if errors and isinstance(errors[-1], ForeignError):
            return


def _sizes(subject: FittedModel, heard: RecordedCall, rows: Mapping[str, int], causal: bool) -> dict[str, Any]:
    found = softmaxes(heard)
    heads = {softmax.weights.shape[1] for softmax in found}
    names = ("encoder", "decoder") if len(subject.inputs) == 2 else ("decoder" if causal else "encoder",)
    fields: dict[str, Any] = {"architecture": "encoder-decoder" if len(names) == 2 else names[0]}
    for stack, name in zip(names, subject.inputs, strict=True):
        fields |= {f"{'source' if stack == 'encoder' else 'target'}_vocab_size": rows[name]} if name in rows else {}
    widths = {each.shape[1] for each in subject.values.values() if each.ndim == 2 and len(each) in rows.values()}
    if len(widths) == 1:
        fields["embed_dim"] = widths.pop()
    if len(heads) == 1:
        fields["num_heads"] = heads.pop()
    return fields | ({f"num_{names[0]}_layers": len(found)} if len(names) == 1 and found else {})


def _causal(subject: FittedModel, heard: RecordedCall) -> bool:
    """Return whether attention hides later tokens. If each token sees only itself, the model counts as causal, unless
    the model has images or token types."""
    found, lengths = softmaxes(heard), list(heard.lengths.values())
    own = [softmax for softmax in found if softmax.weights.shape[2:] == (lengths[-1], lengths[-1])]
    if not own and next(kernels_over_time(subject.values), None) is None:
        raise FitError("No operation is a softmax over the tokens; expected attention.")
    if not own:
        return True
    hidden = [scores_of(each, heard.operations).masked for each in own]
    is_blind = all(is_causal(each.swapaxes(1, 2)) for each in hidden)
    return all(map(is_causal, hidden)) and not (is_blind and heard.inputs.keys() & {"pixels", "token_types"})


def _confirmed(subject: FittedModel, found: FoundFields, calls: Sequence[RecordedCall]) -> Fit:
    """Compare the module with the reference on the calls and on the probes of a check. Take undetermined fields from
    the nearest template if the module still agrees."""
    config, untold = found.config(), dict(found.untold)
    share = _share(config, found, calls)
    name, differ = nearest(config, untold)
    if share > 1:
        return Fit(config, share, name, differ, untold, found.parameters, remarks=tuple(found.remarks))
    usual = _as_usual(config, name, found, calls)
    proof = _proof(subject, usual, found)
    if proof.share > 1 and usual != config:
        usual, proof = config, _proof(subject, config, found)
    if proof.share > 1 and "tiny" in proof.answers:
        usual = dataclasses.replace(usual, norm_eps=_eps_of(proof.probes["tiny"], proof.answers["tiny"]))
        proof = _proof(subject, usual, found)
    unseen = exercised(usual, [*_probes(usual, found, calls), *proof.probes.values()])[1]
    untold |= {each: "no call depends on it" for each in unseen if each not in untold}
    differs = f"With the random weights of a check, the logits differ ({proof.difference})"
    remarks = (*found.remarks, differs) if proof.share > 1 else ()
    return Fit(usual, max(share, proof.share), *nearest(usual, untold), untold, found.parameters, remarks=remarks)


def _proof(subject: FittedModel, config: TransformerConfig, found: FoundFields) -> Proof:
    """Compare logits in float64 and, if they differ, in the module's own precision."""
    written: dict[int, tuple[Arrays, Arrays]] = {}
    probes = own_probes(config)
    itself, *_ = reach_of(config, next(iter(probes.values())).parameters, is_drawn=False)
    probes |= {probe.name: dataclasses.replace(probe, kept=frozenset(["logits"])) for probe in itself.probes}
    for key, probe in probes.items():
        given = id(probe.parameters)
        if given not in written:
            written[given] = write_through(subject.values, found.parameters, probe.parameters)
        probes[key] = dataclasses.replace(probe, parameters=written[given][1])
    tensors = {id(parameters): values for values, parameters in written.values()}

    def answer(probe: Probe) -> np.ndarray:
        subject.model.assign(tensors[id(probe.parameters)])
        return subject.call(inputs.with_further(subject, probe.inputs, {}) | probe.inputs)

    try:
        proof = proved(probes, answer)
        if proof.share > 1:  # float64 may change a module: for example, transformers then uses infinite masks
            subject.narrow()
            proof = proved(probes, answer)
        return proof
    except ModuleError as error:
        error.add_note("`check` makes the same call; pass a function that pads the inputs and cuts the output instead.")
        raise
    finally:
        subject.model.assign(subject.values)


def _eps_of(probe: Probe, answer: np.ndarray) -> float:
    """Return the eps with which the reference is nearest to the module on small activations."""
    parameters = probe.exact
    row: dict[str, Any] = {name: value[:1] for name, value in probe.inputs.items()}

    def error(eps: float) -> float:
        with np.errstate(all="ignore"):
            made = transformer(dataclasses.replace(probe.config, norm_eps=eps), parameters, **row)
        return difference(made, answer[:1])

    return settle(minimize(error, LEAST_EPS, MOST_EPS), error, USUAL_EPS)


def _as_usual(
    config: TransformerConfig, template: str, found: FoundFields, calls: Sequence[RecordedCall]
) -> TransformerConfig:
    every = {name: getattr(templates()[template], name) for name in found.untold if name not in SIZES}
    for fields in (every, *({name: value} for name, value in every.items())):
        usual = changed(config, fields)
        if usual is not None and _share(usual, found, calls) <= 1:
            config = usual
        if fields is every and usual == config:
            return config
    return config


def _probes(config: TransformerConfig, found: FoundFields, calls: Sequence[RecordedCall]) -> list[Probe]:
    return [Probe("fit", f"call {i}", "", config, found.parameters, call.inputs) for i, call in enumerate(calls)]


def _share(config: TransformerConfig, found: FoundFields, calls: Sequence[RecordedCall]) -> float:
    """Return the largest difference between the reference and the calls, divided by the budget."""
    shares: list[float] = []
    for probe, call in zip(_probes(config, found, calls), calls, strict=True):
        budget = probe.oracle.budget("logits", "float32")
        shares.append(gap(call.output, probe.oracle.expected["logits"]) / budget if budget else math.inf)
    return max(shares)
