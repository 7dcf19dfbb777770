import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.check.test_check_report import PORT
from tests.helpers import invoke, run_python
from tests.looping import for_each
from threadpoolctl import threadpool_info, threadpool_limits

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity.training import Training
from transparity_conformance import cache, threads
from transparity_conformance.capabilities.learning.training import batches, tiny
from transparity_conformance.capabilities.port_calls import PortCallError, PortError
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.differentiation.derivatives import Derivatives, training_oracle
from transparity_conformance.oracle.oracle import Oracle, forward_oracle
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.oracle.reach.features import exercised
from transparity_conformance.oracle.reach.models import LogitsOracle
from transparity_conformance.oracle.undetermined import hidden_positions
from transparity_conformance.running.process.isolation import isolated_build
from transparity_numpy.training.loss import cross_entropy

CONFIG = preset("notes-lm").resized()
HIDDEN = preset("translation").resized()


@pytest.fixture(autouse=True)
def _of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))


def probe(config: TransformerConfig = CONFIG) -> Any:
    return probes_of(config, "config")["mixed"]


def noise(oracle: Oracle, dtype: str = "float32") -> dict[str, float]:
    with cache.keeping():
        return oracle.noise(dtype)


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return a function that tells whether the cache contains an oracle's rounding errors (`noise`)."""

    def measured(oracle: Oracle, dtype: str) -> dict[str, float]:
        raise NotImplementedError

    def is_reused(oracle: Oracle, dtype: str = "float32") -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Oracle, "_measure", measured)
            patch.setattr(LogitsOracle, "_measure", measured)
            try:
                return bool(noise(oracle, dtype))
            except NotImplementedError:
                return False

    return is_reused


def test_noise_is_reused_to_the_last_bit(reused: Callable[..., bool]) -> None:
    first = noise(probe().oracle)
    assert reused(probe().oracle) and noise(probe().oracle) == first == probe().oracle.noise("float32")


def changed_weight() -> Oracle:
    given = probe()
    name, value = next(iter(given.parameters.items()))
    value = value.copy()
    value.flat[0] = np.nextafter(value.flat[0], np.float32(9))
    return forward_oracle(given.config, {**given.parameters, name: value}, given.inputs)


def changed_token() -> Oracle:
    given = probe()
    tokens = given.inputs["tokens"].copy()
    tokens[0, 0] += 1
    return forward_oracle(given.config, given.parameters, {"tokens": tokens})


def renamed() -> Oracle:
    """Return an oracle with two equally shaped weights swapped, which leaves the concatenated bytes unchanged."""
    given = probe()
    one, other = "decoder.layers.0.self_attention.query.weight", "decoder.layers.0.self_attention.key.weight"
    swapped = {one: given.parameters[other], other: given.parameters[one]}
    return forward_oracle(given.config, {**given.parameters, **swapped}, given.inputs)


CHANGES: dict[str, Callable[[], Oracle]] = {
    "weights": changed_weight,
    "tokens": changed_token,
    "names": renamed,
    "config": lambda: forward_oracle(dataclasses.replace(CONFIG, norm_eps=2e-5), probe().parameters, probe().inputs),
    "points": lambda: forward_oracle(CONFIG, probe().parameters, probe().inputs, neighbours=2),
    "taps": lambda: forward_oracle(CONFIG, probe().parameters, probe().inputs, kept=["logits"]),
    "kind": lambda: LogitsOracle(CONFIG, probe().parameters, probe().inputs),
}


def test_a_change_of_what_is_computed_is_computed_again(reused: Callable[..., bool]) -> None:
    noise(probe().oracle)
    assert not reused(probe().oracle, "bfloat16")
    for name, change in CHANGES.items():
        assert not reused(change()), name
    assert reused(probe().oracle)


LEARNED = probe(tiny(preset("notes-lm")))


def derivatives(parameters: Any = LEARNED.parameters, **changes: Any) -> Oracle:
    return Derivatives(LEARNED.config, parameters, LEARNED.inputs, **changes).oracle


def test_a_change_of_the_code_is_computed_again(
    reused: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code" / "inner"
    code.mkdir(parents=True)
    (code / "masks.py").write_text("a")
    monkeypatch.setattr(cache, "folders", lambda: [code.parent])
    noise(probe().oracle)
    assert reused(probe().oracle)
    for change in ("b", "a "):
        (code / "masks.py").write_text(change)
        assert not reused(probe().oracle), change
    (code / "masks.py").rename(code / "mask.py")
    assert not reused(probe().oracle)


def test_another_machine_computes_again(reused: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    noise(probe().oracle)
    monkeypatch.setattr(cache, "machine", lambda: "another")
    assert not reused(probe().oracle)
    monkeypatch.undo()


def test_the_sources_are_all_that_the_oracle_imports() -> None:
    """Expect the oracle to import only code that is part of the cache key."""
    script = (
        "import importlib, pkgutil, sys, transparity_conformance.oracle as oracle\n"
        "for each in pkgutil.walk_packages(oracle.__path__, 'transparity_conformance.oracle.'):\n"
        "    importlib.import_module(each.name) if not each.name.endswith('strategies') else None\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('transparity')), sep='\\n')"
    )
    outside = {Path(file) for file in run_python("-c", script).stdout.split()}
    outside = {file for file in outside if not any(folder in file.parents for folder in cache.folders())}
    own = Path(cache.__file__)
    assert outside == {own, own.parent / "__init__.py", own.parent / "threads.py"}


@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: content[:-1], lambda content: content[:-9] + b"123456789"]
)
def test_a_cut_or_changed_file_is_computed_again(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    first, truth = noise(probe().oracle), logits(LogitsOracle(CONFIG, probe().parameters, probe().inputs))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".arrays", ".json"]
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    assert noise(probe().oracle) == first
    assert np.array_equal(logits(LogitsOracle(CONFIG, probe().parameters, probe().inputs)), truth)


def logits(oracle: LogitsOracle) -> np.ndarray:
    with cache.keeping():
        return oracle.expected["logits"]


def test_positions_without_a_visible_key_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(HIDDEN) is not probe(HIDDEN)
    with cache.keeping():
        first = hidden_positions(probe(HIDDEN))
        monkeypatch.setattr("transparity_conformance.oracle.undetermined._measure", lambda probe: {})
        again = hidden_positions(probe(HIDDEN))
        assert hidden_positions(probe(dataclasses.replace(HIDDEN, norm_eps=2e-5))) == {}
    assert first and all(np.array_equal(first[name], again[name]) for name in {**first, **again})


def test_the_fields_that_calls_exercise_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = list(probes_of(CONFIG, "config").values())[:2]
    with cache.keeping():
        first = exercised(CONFIG, probes)
        monkeypatch.setattr("transparity_conformance.oracle.reach.features._exercised", lambda config, probes: ((), ()))
        assert exercised(CONFIG, probes) == first and first[0]
        assert exercised(CONFIG, probes[:1]) == ((), ())


def test_the_oldest_files_are_deleted(tmp_path: Path) -> None:
    names = ["oracle/key/a.json", "jax/machine/b", "oracle/key/c.json", "oracle/notes.json", "thesis"]
    for age, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (100 - age, 100 - age))
    cache.shrink(tmp_path, 25)
    assert sorted(name for name in names if (tmp_path / name).exists()) == sorted({*names} - {"oracle/key/c.json"})


def test_an_empty_variable_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "")
    noise(probe().oracle)
    assert list(tmp_path.iterdir()) == [] and cache.compiled() == {}
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.user_folder() == tmp_path / "transparity"


def test_the_command_keeps_results_and_a_second_check_has_the_same_report(tmp_path: Path) -> None:
    """Expect only the times to differ; no other test uses this configuration, so its oracle is not in memory."""
    (tmp_path / "port.py").write_text(PORT)
    (tmp_path / "config.json").write_text(dataclasses.replace(CONFIG, norm_eps=3e-5).to_json())
    reports = []
    for number in range(2):
        target = tmp_path / f"{number}.json"
        result = invoke(
            "check", f"{tmp_path}/port.py:build", "--config", tmp_path / "config.json", "--quick", "--json", target
        )
        assert result.exit_code == 3, result.output
        (report,) = json.loads(target.read_text())
        reports.append({name: value for name, value in report.items() if name != "timing"})
    assert reports[0] == reports[1] and any((tmp_path / "kept/oracle").rglob("*.json"))


SAYS = """
import os

def build(config, parameters):
    flags = os.environ.get("XLA_FLAGS", "").split()
    if flags:
        import jax
        jax.devices()  # JAX ends the process if it does not know a flag
    raise RuntimeError(f"{len(flags)} flags")
"""


def test_only_small_models_are_compiled_without_slow_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX must know every flag that skips passes, and the user's `XLA_FLAGS` must replace these flags."""
    pytest.importorskip("jax")
    (tmp_path / "says.py").write_text(SAYS)

    def said(*, is_small: bool) -> str:
        started = isolated_build(f"{tmp_path}/says.py:build", is_small=is_small)
        with closing(started) as build, pytest.raises(PortCallError) as raised:
            build(CONFIG, {})
        return str(raised.value)

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert f" {len(cache.QUICKLY)} flags" in said(is_small=True) and " 0 flags" in said(is_small=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    assert " 0 flags" in said(is_small=True)
    monkeypatch.setattr(cache, "KNOW_FLAGS", ("0.0.",))
    assert cache.quickly() == {}


SAYS_THREADS = """
import os

def build(config, parameters):
    raise RuntimeError(f"the port has {os.environ.get('OMP_NUM_THREADS')}")


def load(folder):
    build(folder, None)
"""


@for_each(
    ("arguments", "number", "of_port"),
    [
        (("says.py:build", "--preset", "notes-lm"), "", "1"),
        (("says.py:build", "--preset", "notes-lm"), "2", "2"),
        (("says.py:build", "--config", "config.json"), "", "None"),
        (("says.py:load", "--family", "llama", "--set", "vocab_size=99"), "", "None"),
    ],
)
def test_only_ports_of_small_models_have_one_thread(
    arguments: tuple[str, ...], number: str, of_port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect one thread in the port's process, or the `number` of threads that the user has set."""
    monkeypatch.chdir(tmp_path)
    Path("says.py").write_text(SAYS_THREADS)
    Path("config.json").write_text(CONFIG.to_json())
    for name in threads.THREADS:
        monkeypatch.delenv(name, raising=False)
    if number:
        monkeypatch.setenv("OMP_NUM_THREADS", number)
    assert f"the port has {of_port}" in " ".join(invoke("check", *arguments).output.split())


def test_small_models_use_one_thread_in_the_process_of_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect one thread for a small model, only during the check, and only if the user has set no number of threads."""

    def numbers() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    def build(config: Any, parameters: Any) -> Any:
        raise RuntimeError(str(numbers()))

    def said(**options: Any) -> str:
        with pytest.raises(PortError) as raised:
            check(build, **options)
        return str(raised.value)

    with threadpool_limits(limits=2):
        usual = numbers()
        assert usual
        for name in threads.THREADS:
            monkeypatch.delenv(name, raising=False)
        assert str([1] * len(usual)) in said(preset="notes-lm")
        assert str(usual) in said(config=CONFIG) and str(usual) in said(preset="notes-lm", lengths=np.array([5, 9]))
        with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
            first.enter_context(threads.one_thread())
            second.enter_context(threads.one_thread())
            first.close()
            assert numbers() == [1] * len(usual), "the second call is not over"
        assert numbers() == usual
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert str(usual) in said(preset="notes-lm")


def test_a_change_of_what_is_learned_is_computed_again(reused: Callable[..., bool]) -> None:
    for oracle in (derivatives(), trained()):
        noise(oracle)
    assert reused(derivatives()) and reused(trained())
    assert not reused(derivatives(of_padding=False))
    assert not reused(derivatives(loss=lambda *given: 2 * cross_entropy(*given)))
    assert not reused(trained(Training("sgd"))) and not reused(trained(steps=2)) and not reused(trained(by=print))


def trained(training: Training = Training(), steps: int = 1, **changes: Any) -> Oracle:  # noqa: B008 - it is frozen
    return training_oracle(LEARNED.config, LEARNED.parameters, batches(LEARNED.config)[:steps], training, **changes)
