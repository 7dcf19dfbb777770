import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.looping import for_each
from torch import Tensor, nn

from transparity.errors import TransparityError
from transparity_conformance import check
from transparity_conformance.against import check as check_against
from transparity_conformance.against.ways import way

INPUTS = [{"tokens": np.arange(10).reshape(2, 5)}]
HIDDEN = torch.arange(8) > 5


class Model(nn.Module):
    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.map, self.end = nn.Embedding(10, 8), nn.Linear(8, 8), end
        self.calls = 0

    def forward(self, tokens: Tensor) -> Any:
        self.calls += 1
        return self.end(self.map(self.embedding(tokens)))


class Counting(Model):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens) * self.calls


def same(x: Tensor) -> Tensor:
    return x


REFUSED = {
    "random": (Model(lambda x: x + torch.randn_like(x)), "returns another answer in the second call"),
    "counting": (Counting(same), "returns another answer in the second call"),
    "raising": (Model(lambda x: x @ x), "raised RuntimeError"),
    "empty": (Model(lambda x: x[:, :0]), "returns nothing to compare"),
    "not finite": (Model(lambda x: x * torch.nan), "returns nothing to compare"),
}


@for_each("name", REFUSED)
def test_a_reference_that_cannot_be_one_is_refused(name: str) -> None:
    model, says = REFUSED[name]
    with pytest.raises(TransparityError, match=says):
        check(Model(same), against=model, inputs=INPUTS)


@for_each("given", [{"inputs": [{"ids": np.ones((1, 3), int)}]}, {"inputs": INPUTS, "dtype": "float8"}])
def test_a_request_that_cannot_be_met_is_one_sentence(given: dict[str, Any]) -> None:
    with pytest.raises(TransparityError, match=r"expected|give the inputs"):
        check(Model(same), against=Model(same), **given)


def test_a_maker_that_raises_is_named() -> None:
    def load(folder: str) -> Any:
        raise ValueError("no such layer")

    for port, reference in ((load, Model(same)), (Model(same), load)):
        with pytest.raises(TransparityError, match=r"load raised ValueError: no such layer \(.*\)\.$"):
            check(port, against=reference, checkpoint=".", inputs=INPUTS)


def test_a_port_whose_operations_are_not_recorded_differs_without_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_against, "listen_in_full", lambda forward, name, **inputs: (forward(**inputs), []))
    monkeypatch.setattr(way, "listen_in_full", lambda forward, name, *args, **inputs: (forward(**inputs), []))
    report = check(Model(torch.tanh), against=Model(same), inputs=INPUTS)
    assert report.verdict == "diverges"
    assert [(fault.where, fault.source) for fault in report.faults] == [("answer", None)]


def test_frozen_parameters_have_no_gradients_to_compare() -> None:
    report = check(Model(same).requires_grad_(requires_grad=False), against=Model(same), inputs=INPUTS)
    assert report.verdict == "agrees"
    assert any(line.startswith("gradients: the port does not support this call") for line in report.not_compared)


def test_a_port_that_turns_gradients_off_has_no_gradients_to_compare() -> None:
    off, cut = Model(same), Model(Tensor.detach)
    off.forward = torch.no_grad()(off.forward)  # type: ignore[method-assign]
    report = check(off, against=Model(same), inputs=INPUTS)
    assert report.verdict == "agrees"
    assert "forward.small_weights: Model stores a forward method in an instance" in report.not_compared
    assert "gradients: not compared, because the port turns gradients off" in report.not_compared
    (fault,) = check(cut, against=Model(same), inputs=INPUTS).faults
    assert [cause.mistake for cause in fault.causes] == ["gradient-missing"]


class WithFurther(Model):
    def forward(self, tokens: Tensor, token_type_ids: Any = None, attention_mask: Any = None) -> Any:
        return super().forward(tokens)


def with_input(name: str) -> list[dict[str, Any]]:
    """Return `INPUTS`, preceded by a call that also passes the input `name`, in which some elements are 0."""
    return [{**INPUTS[0], name: INPUTS[0]["tokens"] % 2}, *INPUTS]


def test_an_input_of_the_user_that_the_port_lacks_is_named() -> None:
    with pytest.raises(TransparityError, match=r"expected token_type_ids as one of these inputs"):
        check(Model(same), against=WithFurther(same), inputs=with_input("token_type_ids"))


def test_a_call_with_a_mask_that_the_port_does_not_take_is_listed_as_not_compared() -> None:
    report = check(Model(same), against=WithFurther(same), inputs=with_input("attention_mask"))
    assert report.verdict == "agrees"
    assert any("the port takes no attention_mask" in says for says in report.not_compared)


def test_a_missing_folder_is_one_sentence() -> None:
    load = lambda folder: Model(same)
    with pytest.raises(TransparityError, match=r"^--checkpoint is missing, which is not a folder; expected"):
        check(load, against=load, checkpoint="missing")


@for_each(("package", "extra"), [("torch", "pytorch"), ("transformers", "hub")])
def test_a_missing_framework_is_named_with_the_command_that_installs_it(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(TransparityError, match=rf'needs {package}, .* install "transparity\[{extra}\]"\.$'):
        check(Model(same), against=Model(same), checkpoint="folder")


@for_each("is_function", [False, True])
def test_masked_scores_are_one_number_and_set_no_budget(is_function: bool) -> None:
    lowest = torch.finfo(torch.float32).min
    theirs: Any = Model(lambda x: x.masked_fill(HIDDEN, -1e9))
    theirs = functools.partial(theirs) if is_function else theirs
    right, wrong = Model(lambda x: x.masked_fill(HIDDEN, lowest)), Model(lambda x: (2 * x).masked_fill(HIDDEN, -1e9))
    assert check(right, against=theirs, inputs=INPUTS).verdict == "agrees"
    assert check(wrong, against=theirs, inputs=INPUTS, budget=0).verdict == "diverges"


@for_each("other", [torch.nan, 7.0])
def test_numbers_that_are_not_finite_have_to_be_the_same(other: float) -> None:
    theirs, port = Model(lambda x: x.masked_fill(HIDDEN, torch.nan)), Model(lambda x: x.masked_fill(HIDDEN, other))
    report = check(port, against=theirs, inputs=INPUTS, budget=0)
    assert report.verdict == ("agrees" if np.isnan(other) else "diverges")


def test_all_outputs_are_compared_if_the_port_returns_them() -> None:
    theirs = Model(lambda x: {"logits": x, "pooled": x.mean(1)})
    wrong, right, alone = Model(lambda x: (x, x.sum(1))), Model(lambda x: (x, x.mean(1))), Model(lambda x: x)
    [fault] = check(wrong, against=theirs, inputs=INPUTS).faults
    assert (fault.where, fault.probe.split(", ")[-1]) == ("forward.results: answer", "pooled")
    assert check(right, against=theirs, inputs=INPUTS).verdict == "agrees"
    other = Model(lambda x: {"logits": x, "pooled": x.mean((0, 1))})
    assert [each.is_misshapen for each in check(other, against=theirs, inputs=INPUTS).faults] == [True]
    left_out = check(alone, against=theirs, inputs=INPUTS).not_compared
    assert "pooled: the port's result has no such array" in left_out


class Masked(Model):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return torch.where(mask, self.map(x), x)  # takes no mask of integers


def test_boolean_inputs_stay_boolean() -> None:
    inputs = [{"x": np.ones((2, 8), np.float32), "mask": np.arange(16).reshape(2, 8) % 3 > 0}]
    assert check(Masked(same), against=Masked(same), inputs=inputs).verdict == "agrees"


class Prepared(Model):
    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__(end)
        self.prepared = self.map.weight.detach().T  # computed before other weights are loaded

    def forward(self, tokens: Tensor) -> Any:
        return self.embedding(tokens) @ self.prepared + self.map.bias


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_module_with_tensors_computed_from_its_weights_gets_no_other_weights(is_reference: bool) -> None:
    pair = Prepared(same), Model(same)
    report = check(pair[is_reference], against=pair[not is_reference], inputs=INPUTS)
    assert {fault.where for fault in report.faults} <= {"gradient of map.weight"}
    assert "forward.small_weights: Prepared stores tensors that are no parameters or buffers" in report.not_compared


class Halving(Model):
    def forward(self, tokens: Tensor) -> Any:
        if self.calls == 0:
            self.map.weight.data /= 2  # once, as some models of transformers do
        return super().forward(tokens)


def test_modules_whose_first_call_changes_their_weights_are_compared_before_this_call() -> None:
    report = check(Halving(same), against=Halving(same), inputs=INPUTS)
    assert report.verdict == "agrees"
    assert "forward.small_weights" in [each.id for each in report.claims]
