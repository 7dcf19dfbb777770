"""Requests for generated tokens: the weights, the prompts, and the rule that chooses each next token."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_conformance.capabilities.capability import kept_in
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import BATCH, LONGEST, Probe, as_given
from transparity_conformance.oracle.reach.models import ReachProbe
from transparity_conformance.oracle.reach.thresholds import SHORT, thresholds
from transparity_numpy.decoding.generation import generate
from transparity_numpy.decoding.steps import next_logits
from transparity_numpy.transformer import transformer

ROWS = 4
MANY = 8
"""The number of rows of long prompts. A fault that changes a third of all rows is missed in 4 % of checks (0.67⁸)."""

PROMPT = 2
LONG_PROMPT = 64
"""The largest length of most further prompts; a prompt next to a threshold may have `LONGEST` tokens."""

SEARCHED = 6
"""The largest number of new tokens in a beam search."""

BEAMS = 4

# With these settings, each option changes the sampled tokens. The order in which a port applies the options also
# changes the tokens, because `top_k` often keeps more tokens than `top_p`.
SAMPLINGS = (Sampling(0.5, 8, 0.5), Sampling(1.5, 8, 0.6))

# Settings with only one or two options. The options keep other tokens than the options of `SAMPLINGS`.
FURTHER_SAMPLINGS = (Sampling(0.25), Sampling(1.5, top_p=0.9))

EXTREMES = (0.0, 2**-24, 0.9995, 1 - 2**-24)
"""Random numbers that select the first or the last token that can be sampled."""

# Powers of the length penalty, so large that a port that does not penalize ended continuations returns other beams.
PENALTIES = (2.0, 8.0)


@dataclass(frozen=True, eq=False)
class Request:
    name: str
    config: TransformerConfig
    parameters: Arrays
    prompt: np.ndarray
    steps: int
    source: np.ndarray | None
    lengths: np.ndarray | None = None
    uniforms: np.ndarray | None = None
    sampling: Sampling | None = None
    beams: int | None = None
    """The number of beams of a beam search; None for greedy or sampled tokens."""
    length_penalty: float = 0.0

    @functools.cached_property
    def exact(self) -> Arrays:
        return {name: value.astype(np.float64) for name, value in self.parameters.items()}

    @property
    def begins(self) -> np.ndarray:
        """Return the position of the first new token in each row, with shape (batch,)."""
        return np.full(len(self.prompt), self.prompt.shape[1]) if self.lengths is None else self.lengths

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call. Leave out options that are not set."""
        options = {name: getattr(self, name) for name in ("lengths", "uniforms", "sampling", "source")}
        options |= {"length_penalty": self.length_penalty or None}
        is_array = {name: isinstance(value, np.ndarray) for name, value in options.items()}
        named = {name: as_given(x) if is_array[name] else x for name, x in options.items() if x is not None}
        given = self.prompt.astype(np.int64), self.steps
        return (given if self.beams is None else (*given, self.beams)), named


@kept_in(1)
def simulated(simulate: Callable[..., Any], request: Request) -> Any:
    """Return the answer of a function of the reference, or of a function with a known fault."""
    given, named = request.arguments()
    return simulate(request.config, request.exact, *given, **named)


def following(request: Request, parameters: Arrays, tokens: np.ndarray, steps: int) -> np.ndarray:
    """Return the logits (batch, steps, vocab) from which each new token is chosen, given all earlier `tokens`. A single
    forward pass gives all logits if no output depends on later tokens and the text fits into `max_length`."""
    config, end = request.config, int(request.begins.max()) + steps - 1
    sees_itself = (
        config.pad_id is None or (tokens[:, 0] != config.pad_id).all()
    )  # otherwise, a row may see only padding
    if config.prefixes_agree and sees_itself and end <= config.max_length:
        inputs: dict[str, Any] = {config.input_names[-1]: tokens[:, :end]}
        inputs |= {} if request.source is None else {"source": request.source}
        of_all = transformer(config, parameters, **inputs)
        at = request.begins[:, None] - 1 + np.arange(steps)
        return np.take_along_axis(of_all, at[..., None], axis=1)
    given = (request.config, parameters, tokens)
    logits = [next_logits(*given, request.begins + new, None, request.source, 0) for new in range(steps)]
    return np.stack(logits, axis=1)


def _asked(probe: Probe, name: str, prompt: np.ndarray, steps: int) -> Request:
    """Return a request to a probe's model. If the model has an encoder, give each prompt a source that is not only
    padding."""
    source = probe.inputs["source"] if probe.config.has_encoder else None
    if source is not None:
        pad = probe.config.pad_id
        seen = (source != pad).reshape(len(source), -1).any(1) if pad is not None else np.ones(len(source), bool)
        source = source[np.resize(np.flatnonzero(seen), len(prompt))]
    return Request(name, probe.config, probe.parameters, prompt, steps, source)


def _prompt(config: TransformerConfig, seed: int, rows: int, length: int) -> np.ndarray:
    prompt = np.random.default_rng(seed).integers(1, config.vocab_size, (rows, length))
    if config.bos_id is not None:
        prompt[:, 0] = config.bos_id
    return prompt


def _single(request: Request, name: str) -> Request:
    source = None if request.source is None else request.source[1:2]
    return replace(request, name=name, prompt=request.prompt[:1], source=source)


class Asked(NamedTuple):
    first: tuple[Request, ...]
    further: tuple[Request, ...] = ()
    """Requests that bundles do not contain, with other batches, lengths and options."""
    across: Callable[[ReachProbe], Request] | None = None
    """A function of a reached call that returns a request with texts of about the same length; None if the claim has no
    such requests."""


@kept_in(0)
def given_requests(probe: Probe) -> dict[str, Asked]:
    """Return one request for each claim, to the probe's own model. All rows of a request together have about as many
    tokens as the probe."""
    config = probe.config
    width = min(probe.inputs[config.input_names[-1]].size // MANY, config.max_length)
    prompt = _prompt(config, 5, MANY, max(1, width - PROMPT))
    greedy = _asked(probe, "with the given parameters", prompt, max(1, width - prompt.shape[1]))
    beams = replace(greedy, name="beams with the given parameters", steps=min(SEARCHED, greedy.steps), beams=BEAMS)
    return {"generate": Asked((greedy,)), "beam_search": Asked((beams,))}


@kept_in(0)
def requests_of(probe: Probe) -> dict[str, Asked]:
    """Return the requests of each claim, to a model with other signs in the last norm's gain.

    All sampled requests have the shapes of a greedy request, for which a port may already be compiled. Further requests
    use extreme random numbers, several options of sampling, or a `top_k` that keeps most of the vocabulary. In the
    ragged requests, prompts of different lengths are in one batch.
    """
    greedy = _greedy_requests(probe)
    beyond, width = greedy.first[0], greedy.further[-1].prompt.shape[1]
    # float32 represents these numbers exactly, so every port gets the same numbers.
    uniforms = np.random.default_rng(6).random((ROWS, beyond.steps), np.float32).astype(np.float64)
    extremes = np.repeat(np.array(EXTREMES)[:, None], beyond.steps, axis=1)
    drawn = replace(beyond, name="drawn", uniforms=uniforms)
    further = (*FURTHER_SAMPLINGS, Sampling(1.0, top_k=max(1, probe.config.vocab_size * 3 // 4)))
    many = replace(_asked(probe, "", _prompt(probe.config, 12, MANY, width), 3), parameters=beyond.parameters)
    of_many = _ragged(many, f"prompts of 1 to {width} tokens", np.linspace(width, 1, MANY).astype(int))
    return {
        "generate": greedy,
        "generate.uniforms": Asked(
            (drawn,), (replace(drawn, name="drawn with the smallest and largest random numbers", uniforms=extremes),)
        ),
        "generate.sampling": Asked(
            tuple(replace(drawn, name=f"drawn at the temperature {s.temperature:g}", sampling=s) for s in SAMPLINGS),
            tuple(replace(drawn, name=f"drawn with {sampling}", sampling=sampling) for sampling in further),
        ),
        "generate.lengths": Asked(
            (_ragged(beyond, "prompts of different lengths", np.arange(ROWS) % PROMPT + 1),), (of_many,)
        ),
        **_beam_requests(probe, greedy.first[-1]),
    }


def _greedy_requests(probe: Probe) -> Asked:
    """Return requests for more tokens than the smaller of `max_length` and `LONGEST`; in one request, rows end early.
    Further requests have long prompts in one or `MANY` rows, with one or three new tokens."""
    config, length = probe.config, max(1, min(probe.config.max_length, SHORT + 3) - 3)
    name = "beyond max_length" if config.max_length <= LONGEST else "far from max_length"
    beyond = _asked(probe, name, _prompt(config, 5, ROWS, PROMPT), min(config.max_length, LONGEST) + 2)
    prompt = _prompt(config, 11, MANY, length)
    if config.eos_id is not None and length > 2:
        prompt[1, 1] = config.eos_id
    several = _asked(probe, "long prompts, one with an end token", prompt, 3)
    further = _single(several, "one row"), replace(several, name="one new token", steps=1), several
    return Asked(_ending(replace(beyond, parameters=_with_changed_signs(probe))), further, _across)


def _beam_requests(probe: Probe, ending: Request) -> dict[str, Asked]:
    """Return beam searches in which some continuations end early. Further requests have a single row or one beam. With
    a length penalty, scores are divided by ((5 + new tokens) / 6) ** power."""
    config, parameters = ending.config, ending.parameters
    asked = _asked(probe, "beams", _prompt(config, 10, BATCH, PROMPT), SEARCHED)
    request = replace(asked, config=config, parameters=parameters, beams=BEAMS)
    prompt = _prompt(config, 13, 2, min(PROMPT + 1, config.max_length))
    two = replace(request, prompt=prompt, source=None if request.source is None else request.source[:2])
    return {
        "beam_search": Asked((request,), (_single(two, "beams of one row"), replace(two, name="one beam", beams=1))),
        "beam_search.length_penalty": Asked(
            tuple(replace(request, name=f"beams with the penalty {p:g}", length_penalty=p) for p in PENALTIES)
        ),
    }


def _across(probe: ReachProbe) -> Request:
    """Return a request for prompts two tokens shorter than the text of `probe`, and for three new tokens.

    Prompts are cut to `LONGEST` tokens if the text is one token longer than a threshold, otherwise to `LONG_PROMPT`.
    """
    length, crossed = probe.lengths[-1], thresholds(probe.config).values()
    longest = LONGEST if length - 1 in crossed else LONG_PROMPT
    prompt = _prompt(probe.config, 14, MANY, max(1, min(length - 2, longest)))
    return _asked(probe, f"prompts of {prompt.shape[1]} tokens", prompt, 3)


def _ragged(request: Request, name: str, lengths: np.ndarray) -> Request:
    prompt = request.prompt
    cut = np.where(np.arange(prompt.shape[1]) < lengths[:, None], prompt, request.config.filling_id)
    return replace(request, name=name, prompt=cut, lengths=lengths)


def _with_changed_signs(probe: Probe) -> Arrays:
    """Return parameters with random signs in the last norm's gain. Otherwise, one token might always win, such as the
    last token if the head is tied. If the head has a bias, shift the bias so that each mean logit is 0."""
    config, last = probe.config, f"decoder.layers.{probe.config.num_decoder_layers - 1}.feed_forward_norm"
    name = f"{'decoder.final_norm' if config.final_norm else last}.weight"
    if name not in probe.parameters:
        return probe.parameters
    signs, more = np.random.default_rng(8).choice((-1, 1), config.embed_dim), config.norm_gain == "one-plus-weight"
    weight = signs * (probe.parameters[name] + more) - more
    turned = probe.parameters | {name: weight.astype(np.float32)}
    if "head.bias" not in turned:
        return turned
    usual = transformer(config, turned, **dict(probe.inputs)).mean(axis=(0, 1))  # type: ignore[arg-type]
    return turned | {"head.bias": (turned["head.bias"] - usual).astype(np.float32)}


def _ending(beyond: Request) -> tuple[Request, ...]:
    """Return two copies of `beyond` with different end tokens; without an end token, return `beyond` itself. The first
    end token occurs in no row, unless the rows use all tokens. The second end token occurs at more steps than other
    tokens."""
    config, begin = beyond.config, beyond.prompt.shape[1]
    if config.eos_id is None:
        return (beyond,)
    endless = replace(config, eos_id=None)
    tokens = generate(endless, beyond.parameters, beyond.prompt, beyond.steps, source=beyond.source)
    # For each token, the step of its first occurrence in each row with this token.
    firsts = {
        token: [int(np.argmax(row == token)) for row in tokens[:, begin:] if (row == token).any()]
        for token in range(config.vocab_size)
    }
    free = [token for token in firsts if token not in (config.pad_id, config.bos_id)]
    never = next((token for token in free if not firsts[token]), config.eos_id)
    ending = max(free, key=lambda token: (len(set(firsts[token])), min(firsts[token], default=0)))
    return (
        replace(beyond, config=replace(config, eos_id=never)),
        replace(beyond, name="rows with an end token", config=replace(config, eos_id=ending)),
    )
