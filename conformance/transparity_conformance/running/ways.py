"""Call a model in other ways than a plain forward pass: step by step with a cache, for a loss, or to generate tokens.

The same functions call both models of a comparison, so all differences come from the models.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.capabilities.port_calls import has_method, signature_of
from transparity_conformance.listening.backward import Backward, listen_backward
from transparity_conformance.listening.operation import run
from transparity_conformance.running.frameworks.modules import module_in
from transparity_conformance.running.inputs import answer_in, arrays_in, is_instance, takes_of

CACHES = {"past", "cache", "caches", "cached", "kv", "state", "states", "mems"}
OTHER_CACHES = {"use", "output", "return", "hidden", "attention", "position", "length", "encoder", "shared", "padding"}
"""Words in the name of the argument for a cache, and words in the names of similar arguments."""

LABELS = "labels"
"""The name of the argument for labels; with labels, a model also returns its loss."""

Tensors = Mapping[str, Any]


def _names(model: Any) -> Mapping[str, inspect.Parameter]:
    takes = takes_of(model)
    return {} if takes is None else takes.parameters


def is_cache(name: str) -> bool:
    words = {*name.split("_")}
    return bool(words & CACHES) and not words & OTHER_CACHES


def cache_name(model: Any) -> str:
    """Return the name of the optional argument for a cache, or an empty text."""
    return next((name for name, each in _names(model).items() if is_cache(name) and each.default is not each.empty), "")


def step(model: Any, cache: Any, inputs: Tensors) -> tuple[Any, Any]:
    """Run one step with a cache (initially None). Return the output and the next cache."""
    name, names = cache_name(model), _names(model)
    # A model with `**kwargs` and a `config` is assumed to take every argument.
    takes_all = hasattr(model, "config") and any(each.kind is each.VAR_KEYWORD for each in names.values())
    settings = {"use_cache": True} if takes_all or "use_cache" in names else {}
    before = {} if cache is None else {name: cache}
    returned = model(**inputs, **settings, **before)
    return answer_in(returned), _cache_in(returned, name)


def _cache_in(returned: Any, name: str) -> Any:
    """Return the cache in a model's result: the attribute or key `name`, or the second item. Raise `TypeError` if there
    is no cache."""
    found = returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
    if found is None and isinstance(returned, tuple | list) and len(returned) > 1:
        found = returned[1]
    if found is None:
        raise TypeError(
            f"the model returned {shown(returned)}; expected a result with the attribute {name}, or a tuple whose "
            "second item is a cache"
        )
    return found


def in_steps(model: Any, first: int, then: int, inputs: Tensors) -> Any:
    """Run a model in steps with a cache: `first` positions, then `then` positions at a time; return the output."""
    content = _content(inputs)
    length, answers, cache, begin = inputs[content].shape[1], [], None, 0
    while begin < length:
        end = min(begin + (then if begin else first), length)
        answer, cache = step(model, cache, dict(_part(inputs, content, begin, end)))
        answers.append(answer)
        begin = end
    return _joined(answers)


def _content(inputs: Tensors) -> str:
    """Return the name of the input to split into steps: the decoder's tokens, if there are any, or the first input."""
    return next((name for name in inputs if name == "decoder_input_ids"), next(iter(inputs)))


def up_to(inputs: Tensors, end: int) -> dict[str, Any]:
    return dict(_part(inputs, _content(inputs), 0, end))


def _part(inputs: Tensors, content: str, begin: int, end: int) -> Iterator[tuple[str, Any]]:
    """Yield the inputs of a step that processes the positions from `begin` to `end`. A mask covers all positions up to
    `end`. An input without positions is passed only in the first step."""
    is_beside_encoder = content.startswith("decoder_")
    for name, value in inputs.items():
        if is_beside_encoder and not name.startswith("decoder_"):
            yield name, value
        elif tuple(value.shape[:2]) == tuple(inputs[content].shape[:2]):
            yield name, value[:, :end] if "mask" in name else value[:, begin:end]
        elif begin == 0:
            yield name, value


def _joined(answers: list[Any]) -> Any:
    if is_instance(answers[0], "torch", "Tensor"):
        import torch

        return torch.cat(answers, dim=1)
    if is_instance(answers[0], "jax", "Array"):
        import jax.numpy as jnp

        return jnp.concatenate(answers, axis=1)
    return np.concatenate([np.asarray(each) for each in answers], axis=1)


def loss(model: Any, inputs: Tensors) -> Any:
    """Return the loss of a forward pass with labels; raise `TypeError` if the result has no loss."""
    returned = model(**inputs)
    found = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", None)
    if found is None:
        raise TypeError(f"the model returned {shown(returned)}; expected an object with a loss")
    return found


def results(model: Any, inputs: Tensors) -> dict[str, Any]:
    return arrays_in(model(**inputs))


def result(model: Any, name: str, place: str, inputs: Tensors) -> Any:
    """Return the array `name` of a model's result, or the array at a place if the result is a sequence."""
    found = results(model, inputs)
    return found[name] if name in found else found[place]


def generated(model: Any, count: int, inputs: Tensors) -> Any:
    """Generate `count` tokens greedily with the model's `generate`; return the prompt and the generated tokens."""
    takes = signature_of(model.generate)
    if takes is not None and "generation_config" in takes.parameters:  # a model of transformers
        return model.generate(**inputs, max_new_tokens=count, do_sample=False, num_beams=1)
    first, *others = inputs
    return model.generate(inputs[first], count, **{name: inputs[name] for name in others})


COTANGENT = "cotangent"
"""The name of an array that `gradients` receives in addition to the model's inputs. The inner product of this array and
the model's output is differentiated."""


def gradients(model: Any, inputs: Tensors) -> dict[str, dict[str, Any]]:
    module, call, differentiate = _differentiation(model, inputs)
    import torch

    with torch.enable_grad():
        found = dict(zip(_learned(module), differentiate(call()), strict=True))
    return {
        "parameters": {name: value.detach() for name, value in module.named_parameters()},
        "gradients": {name: value for name, value in found.items() if value is not None},
    }


def backward(model: Any, inputs: Tensors) -> Backward:
    module, call, differentiate = _differentiation(model, inputs)
    return run(lambda: listen_backward(call, _learned(module), differentiate))


def _learned(module: Any) -> dict[str, Any]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def _is_trainable(model: Any) -> bool:
    module = module_in(model)
    return module is not None and bool(_learned(module))


def _differentiation(model: Any, inputs: Tensors) -> tuple[Any, Callable[[], Any], Callable[[Any], Sequence[Any]]]:
    import torch

    module, given = module_in(model), {name: value for name, value in inputs.items() if name != COTANGENT}
    given |= {"use_cache": False} if "use_cache" in _names(model) else {}

    def call() -> Any:
        return answer_in(model(**given))

    def differentiate(answer: Any) -> Sequence[Any]:
        learned = list(_learned(module).values())
        if not answer.requires_grad:
            return [None] * len(learned)
        total = (answer * inputs[COTANGENT]).sum()
        return torch.autograd.grad(total, learned, allow_unused=True)

    return module, call, differentiate


WAYS: dict[str, tuple[Callable[..., Any], Callable[[Any], bool]]] = {
    "in_steps": (in_steps, lambda model: bool(cache_name(model)) and not is_instance(model, "mlx.nn", "Module")),
    "loss": (loss, lambda model: LABELS in _names(model)),
    "results": (results, lambda model: True),
    "result": (result, lambda model: True),
    "generated": (generated, lambda model: has_method(model, "generate")),
    "gradients": (gradients, _is_trainable),
    "backward": (backward, _is_trainable),
}
"""The ways to call a model: a function that makes the call, and a function that tests whether a model supports it.

An MLX module does not support `in_steps`: its caller makes the cache, and its result does not contain the cache.
"""


def offers(model: Any, way: str) -> bool:
    return WAYS[way][1](model)


def add_ways(forward: Any, model: Any, call: Callable[..., Any]) -> None:
    """Add the calls that a model supports as methods to its forward pass. `call` runs a function without gradients, on
    inputs with the model's own names."""
    for name, (function, _) in WAYS.items():
        if offers(model, name):
            setattr(forward, name, functools.partial(call, functools.partial(function, model)))
