"""No byte of a bundle, or of what a port wrote, can do harm: it is a sentence or a verdict, and never a wrong one."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity_conformance.capabilities.capability import BuiltPort
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.exchange.bundle.bundle import ACTUAL, Bundle, bundle_probes, judge_bundle
from transparity_conformance.exchange.bundle.manifest import FILES, SECTIONS, digest, files_of
from transparity_conformance.exchange.bundle.reading import read_actual, read_bundle
from transparity_conformance.exchange.bundle.writing import export_bundle
from transparity_conformance.report.comparison import difference
from transparity_pytorch.port import build

UNSIGNED, SIGNED, WRITTEN, OF_SECTIONS = 5_000, 600, 5_000, 1_500
JUDGED = 60
"""Of what was written, so many are judged: looking for causes takes its time."""

PART = 5
"""Without --every-case, the first of so many of all these are tried."""

MEGABYTES = 300
"""By so much the memory may grow on the way."""

BUNDLE_FILES = ("manifest.json", *FILES)

CONFIG = TransformerConfig(
    architecture="decoder",
    target_vocab_size=5,
    max_length=3,
    embed_dim=4,  # of two features a layer norm leaves the sign: gradients through it would be little but rounding
    num_heads=1,
    num_decoder_layers=1,
    feed_forward_dim=2,
)

Mutation = Callable[[np.random.Generator, bytes], bytes]


def place(random: np.random.Generator, data: bytes) -> int:
    """Anywhere, or as often where a header is."""
    size = len(data) if random.random() < 0.5 else min(len(data), 600)
    return int(random.integers(max(1, size)))


def flip_a_bit(random: np.random.Generator, data: bytes) -> bytes:
    at = place(random, data)
    return data[:at] + bytes([data[at] ^ 1 << int(random.integers(8))]) + data[at + 1 :]


def change_a_byte(random: np.random.Generator, data: bytes) -> bytes:
    at = place(random, data)
    return data[:at] + random.bytes(1) + data[at + 1 :]


def cut(random: np.random.Generator, data: bytes) -> bytes:
    return data[: place(random, data)]


def cut_out(random: np.random.Generator, data: bytes) -> bytes:
    at = place(random, data)
    return data[:at] + data[at + int(random.integers(1, 40)) :]


def swell_at_the_end(random: np.random.Generator, data: bytes) -> bytes:
    return data + random.bytes(int(random.integers(1, 5000)))


def swell_inside(random: np.random.Generator, data: bytes) -> bytes:
    at = place(random, data)
    return data[:at] + random.bytes(int(random.integers(1, 40))) + data[at:]


def repeat_a_piece(random: np.random.Generator, data: bytes) -> bytes:
    at = place(random, data)
    piece = data[at : at + int(random.integers(1, 200))]
    return data[:at] + piece * int(random.integers(2, 5)) + data[at + len(piece) :]


def blank(random: np.random.Generator, data: bytes) -> bytes:
    at, size = place(random, data), int(random.integers(1, 40))
    return data[:at] + (b"\0", b"\xff", b" ")[int(random.integers(3))] * size + data[at + size :]


def lie_about_the_length(random: np.random.Generator, data: bytes) -> bytes:
    length = int(random.integers(2**63)) >> int(random.integers(63))
    return length.to_bytes(8, "little") + data[8:]


NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"2",
    b"7",
    b"1e9",
    b"4294967296",
    b"9223372036854775807",
    b"9" * 30,
    b"null",
    b'"1"',
    b"[]",
)


def lie_about_a_number(random: np.random.Generator, data: bytes) -> bytes:
    """Put another number into JSON, and make the header as long as it then is."""
    found = list(re.finditer(rb"(?<=[\[:, ])\d+(?=[,\]} \n])", data[:4000]))
    if not found:
        return flip_a_bit(random, data)
    chosen = found[int(random.integers(len(found)))]
    number = NUMBERS[int(random.integers(len(NUMBERS)))]
    changed = data[: chosen.start()] + number + data[chosen.end() :]
    if data[:1] == b"{":
        return changed
    length = int.from_bytes(data[:8], "little") + len(changed) - len(data)
    return max(0, length).to_bytes(8, "little") + changed[8:]


MUTATIONS: tuple[Mutation, ...] = (
    flip_a_bit,
    flip_a_bit,
    change_a_byte,
    cut,
    cut_out,
    swell_at_the_end,
    swell_inside,
    repeat_a_piece,
    blank,
    lie_about_the_length,
    lie_about_a_number,
    lie_about_a_number,
)


def mutants(seed: int, data: bytes, count: int) -> Iterator[bytes]:
    """Mutations of `data`; never itself."""
    random = np.random.default_rng(seed)
    while count:
        changed = MUTATIONS[int(random.integers(len(MUTATIONS)))](random, data)
        if changed != data:
            yield changed
            count -= 1


@pytest.fixture(autouse=True)
def _memory_does_not_grow() -> Iterator[None]:
    resource = pytest.importorskip("resource")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / scale < MEGABYTES


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    folder = tmp_path_factory.mktemp("bundle")
    probes = {name: probe for name, probe in bundle_probes("config", CONFIG).items() if name in ("one", "mixed")}
    return folder, export_bundle(CONFIG, folder, probes)


def one_sentence(error: TransparityError) -> int:
    """1, so that it can be counted."""
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    return 1


def is_the_same(one: Bundle, other: Bundle) -> bool:
    return (one.name, one.dtype, one.config, list(one.probes)) == (
        other.name,
        other.dtype,
        other.config,
        list(other.probes),
    ) and all(
        np.array_equal(mine[name], theirs[name])
        for probe in one.probes
        for mine, theirs in (
            (one.probes[probe].parameters, other.probes[probe].parameters),
            (one.probes[probe].inputs, other.probes[probe].inputs),
        )
        for name in theirs
    )


@pytest.fixture
def part(pytestconfig: pytest.Config) -> int:
    return 1 if pytestconfig.getoption("--every-case") else PART


@pytest.mark.parametrize("name", BUNDLE_FILES)
def test_a_changed_bundle_is_refused_or_means_the_same(
    tmp_path: Path, written: tuple[Path, Bundle], name: str, part: int
) -> None:
    folder, bundle = written
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    refused = 0
    for changed in mutants(1, (folder / name).read_bytes(), UNSIGNED // len(BUNDLE_FILES) // part):
        (copy / name).write_bytes(changed)
        try:
            read = read_bundle(copy)
        except TransparityError as error:
            refused += one_sentence(error)
        else:
            assert name == "manifest.json", "every other file has a digest"
            assert is_the_same(read, bundle)
    assert refused > UNSIGNED // len(BUNDLE_FILES) // part * 0.9


@pytest.mark.parametrize("name", BUNDLE_FILES)
def test_a_forged_bundle_expects_what_the_reference_says(
    tmp_path: Path, written: tuple[Path, Bundle], name: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = written
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    # every digest is right, whatever is in the file
    monkeypatch.setattr(
        "transparity_conformance.exchange.bundle.manifest.own_digest",
        lambda manifest: manifest["sha256"]["manifest.json"],
    )
    known = {file: (copy / file).read_bytes() for file in FILES}
    digests = {file: bytes(file, "ascii").hex() for file in known}
    text = (folder / "manifest.json").read_text()
    for file in FILES:
        text = text.replace(digest(folder / file), digests[file])
    (copy / "manifest.json").write_text(text)
    monkeypatch.setattr("transparity_conformance.exchange.bundle.manifest.digest", lambda path: digests[path.name])
    for changed in mutants(2, (copy / name).read_bytes(), SIGNED // len(BUNDLE_FILES) // part):
        (copy / name).write_bytes(changed)
        with suppress(TransparityError):
            read = read_bundle(copy)
            for key, probe in read.probes.items():
                assert all(np.isfinite(value).all() for value in probe.oracle.expected.values()), key
                assert all(np.isfinite(probe.oracle.budget(tap, read.dtype)) for tap in probe.oracle.expected), key


@pytest.mark.long
def test_a_changed_actual_is_refused_or_judged(tmp_path: Path, written: tuple[Path, Bundle], part: int) -> None:
    folder, bundle = written
    shapes, path = bundle.shapes, tmp_path / ACTUAL
    readable = judged = refused = 0
    for index, changed in enumerate(mutants(3, (folder / "expected.safetensors").read_bytes(), WRITTEN // part)):
        path.write_bytes(changed)
        try:
            said = read_actual(path, bundle, cut=index % 2 == 0)
        except TransparityError as error:
            refused += one_sentence(error)
            continue
        readable += 1
        assert all(
            value.shape == shapes[f"{probe}/{tap}"] for probe, taps in said.items() for tap, value in taps.items()
        )
        if readable % 20 == 0 and judged < JUDGED // part:
            judged += 1
            report = judge_bundle(bundle, said)
            right = all(
                "logits" in said.get(key, {})
                and np.abs(said[key]["logits"] - probe.oracle.expected["logits"]).max()
                <= probe.oracle.budget("logits", "float32")
                for key, probe in bundle.probes.items()
            )
            assert right or report.verdict != "agrees"
    assert readable + refused == WRITTEN // part
    assert readable > WRITTEN // part // 20
    assert judged


@pytest.fixture(scope="module")
def with_sections(tmp_path_factory: pytest.TempPathFactory, written: tuple[Path, Bundle]) -> tuple[Path, Bundle]:
    """The same bundle with every section, and beside it the answers of a right port."""
    folder = tmp_path_factory.mktemp("sections") / "bundle"
    bundle = export_bundle(CONFIG, folder, written[1].probes, sections=SECTIONS)
    port = BuiltPort(build, build(CONFIG, next(iter(bundle.probes.values())).parameters))
    right = {f"{key}/logits": probe.oracle.expected["logits"] for key, probe in bundle.probes.items()}
    for section in bundle.capabilities.values():
        for way in section.row.ways:
            for key, request in section.requests[way.claim].items():
                right |= section.row.ask(port, way, key, request)
    save_file({name: as_written(right[name], shape) for name, shape in asked_of(bundle).items()}, folder / ACTUAL)
    return folder, bundle


def asked_of(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    """The logits, and all tensors of the sections."""
    return {name: shape for name, shape in bundle.shapes.items() if name.endswith("/logits")} | bundle.asked


def as_written(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Floats as float32; tokens as int32, with columns of -1 after the last one."""
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    return np.pad(value.astype(np.int32), ((0, 0), (0, shape[1] - value.shape[1])), constant_values=-1)


OF_CAPABILITIES = ("manifest.json", *(row.file for row in CAPABILITIES.values() if row.file))


@pytest.mark.parametrize("name", OF_CAPABILITIES)
def test_a_changed_section_is_refused_or_means_the_same(
    tmp_path: Path, with_sections: tuple[Path, Bundle], name: str, part: int
) -> None:
    folder, bundle = with_sections
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    refused = 0
    for changed in mutants(4, (folder / name).read_bytes(), OF_SECTIONS // 3 // part):
        (copy / name).write_bytes(changed)
        try:
            read = read_bundle(copy)
        except TransparityError as error:
            refused += one_sentence(error)
        else:
            assert name == "manifest.json", "every other file has a digest"
            assert is_the_same(read, bundle)
            assert read.asked == bundle.asked
    assert refused > OF_SECTIONS // 3 // part * 0.9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_CAPABILITIES)
def test_a_forged_section_asks_for_what_the_probes_make_of_it(
    tmp_path: Path, with_sections: tuple[Path, Bundle], name: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bundle = with_sections
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    # every digest is right, whatever is in the file
    own = "transparity_conformance.exchange.bundle.manifest.own_digest"
    monkeypatch.setattr(own, lambda manifest: manifest["sha256"]["manifest.json"])
    known = {file: digest(folder / file) for file in files_of(SECTIONS)}
    monkeypatch.setattr("transparity_conformance.exchange.bundle.manifest.digest", lambda path: known[path.name])
    text = (folder / name).read_bytes()
    begin = text.index(b'"loss": {') if name == "manifest.json" else 0  # the probes before it have their own test
    for changed in mutants(5, text[begin:], SIGNED // 3 // part):
        (copy / name).write_bytes(text[:begin] + changed)
        with suppress(TransparityError):
            read = read_bundle(copy)
            assert {item: shape for item, shape in bundle.asked.items() if item in read.asked} == read.asked
            for section, mine in read.capabilities.items():
                for key, value in bundle.capabilities[section].tensors().items():
                    other = mine.tensors()[key]
                    assert np.isfinite(other).all() if "parameters/" in key else np.array_equal(value, other), key


@pytest.mark.long
def test_what_was_changed_beside_the_taps_is_refused_or_judged(
    tmp_path: Path, with_sections: tuple[Path, Bundle], part: int
) -> None:
    folder, bundle = with_sections
    path, right = tmp_path / ACTUAL, load_file(folder / ACTUAL)
    assert set(bundle.asked) < set(right)
    path.write_bytes((folder / ACTUAL).read_bytes())
    assert judge_bundle(bundle, read_actual(path, bundle)).verdict == "agrees"
    judged = refused = 0
    for changed in mutants(6, (folder / ACTUAL).read_bytes(), OF_SECTIONS // part):
        path.write_bytes(changed)
        try:
            said = read_actual(path, bundle)
        except TransparityError as error:
            refused += one_sentence(error)
            continue
        flat = {f"{probe}/{name}": value for probe, of in said.items() for name, value in of.items()}
        logits = [name for name in right if name.endswith("/logits")]
        if judged < JUDGED // part and all(np.array_equal(flat.get(name, ()), right[name]) for name in logits):
            judged += 1
            report = judge_bundle(bundle, said)
            budget = max([*(tap.budget for tap in report.measured), *(claim.budget for claim in report.claims)])
            with np.errstate(invalid="ignore"):  # a changed number may be a signalling NaN
                near = all(name in flat and difference(flat[name], right[name]) <= 2 * budget for name in right)
            assert near or report.verdict != "agrees"
    assert refused > OF_SECTIONS // part // 2
    assert judged == JUDGED // part


def test_there_are_ten_thousand_of_them(written: tuple[Path, Bundle]) -> None:
    """Every changed file that the tests above try is another one than was written."""
    folder, _ = written
    data = {name: (folder / name).read_bytes() for name in BUNDLE_FILES}
    tried = [(seed, name, count // len(BUNDLE_FILES)) for seed, count in ((1, UNSIGNED), (2, SIGNED)) for name in data]
    tried.append((3, "expected.safetensors", WRITTEN))
    changed = sum(other != data[name] for seed, name, count in tried for other in mutants(seed, data[name], count))
    assert changed == UNSIGNED + SIGNED + WRITTEN >= 10_000
