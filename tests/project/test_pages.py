import importlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.looping import for_each

from transparity.presets import PRESETS
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.report.audit import CAUSES
from transparity_conformance.report.causes import meanings
from transparity_conformance.suite.claims import all_claims

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]
PAGES += sorted(f"docs/documents/{page.name}" for page in (ROOT / "docs/documents").glob("*.md"))
FOLDERS = r"(?:reference|backends|conformance|benchmarks|docs|examples|tests|\.github|\.ci)"
PLACEHOLDER = r"/[^/]*(?:NAME|TOPIC|SUBJECT|FAMILY)[^/]*/?$"
"""Matches file names that contain a placeholder; only their folder must exist."""


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    return re.sub(r"(?ms)^( *)```.*?^\1```$", "", read(page))


@for_each("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(rf"`({FOLDERS}/[\w./-]*)`", prose(page))
    assert [name for name in named if not (ROOT / re.sub(PLACEHOLDER, "", name)).exists()] == []


@for_each("page", PAGES)
def test_the_modules_and_functions_that_a_page_names_exist(page: str) -> None:
    for name in re.findall(r"`(transparity(?:_\w+)?(?:\.\w+)+)`", prose(page)):
        assert name in ("transparity.backends", "transparity.harnesses") or resolved(name) is not None


def resolved(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(resolved(module), attribute)


@for_each("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), f"there is no {target}"
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), f"there is no heading {target}"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub generates for a page's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    index = read("docs/README.md")
    pages = [page.removeprefix("docs/") for page in PAGES if re.fullmatch(r"docs/(?!README)[^/]+", page)]
    assert [page for page in pages if f"]({page})" not in index] == []


def test_the_readme_is_short_and_the_check_is_on_its_first_screen() -> None:
    lines = read("README.md").splitlines()
    assert len(lines) <= 110
    assert lines.index("## Check a port") < 15


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@for_each(("file", "name"), [("docs/three-columns.svg", "three_columns"), ("docs/answer.svg", "answer")])
def test_a_picture_is_of_the_current_sources(file: str, name: str) -> None:
    assert read(file) == script(name).picture(), f"run python -m docs.{name}"


@for_each("page", ["README.md", "docs/agreement.md"])
def test_the_agreement_is_that_of_the_run_that_is_kept(page: str) -> None:
    agreement = script("agreement")
    name, render = agreement.PAGES[page]
    text = render(json.loads(read("docs/agreement.json")))
    assert text in read(page)
    assert agreement.with_part(read(page), name, text) == read(page)


def test_the_agreement_has_every_quick_claim() -> None:
    kept = json.loads(read("docs/agreement.json"))
    quick = {name for name, claim in all_claims().items() if claim.quick}
    assert set(kept["cells"]) == quick | {"drawn.configurations"}, "run nox -s conformance, then docs/agreement.py"
    assert kept["summary"].startswith(f"{len(kept['cells'])} claims, ")


def test_the_speed_of_the_readme_is_that_of_the_performance_page() -> None:
    measured = read("docs/performance.md").partition("## Results")[2].partition("\n## ")[0]
    fastest: dict[str, dict[str, tuple[float, str]]] = {}
    workload = ""
    for name, mode, time, ratio in re.findall(r"(?m)^\| *(\S*) \| (.+?) \| ([\d,]+) \| .+? \| (.+?) \|$", measured):
        workload, column = name or workload, mode.split()[0]
        row = float(time.replace(",", "")), ratio
        fastest.setdefault(workload, {})[column] = min(row, fastest.get(workload, {}).get(column, row))
    assert fastest
    spans = []
    for title, column in (("PyTorch", "pytorch"), ("JAX", "flax"), ("NumPy", "numpy")):
        ratios = [row[column][1].partition(" ")[0] for row in fastest.values() if column in row]
        spans.append(f"{title} {min(ratios, key=float)} to {max(ratios, key=float)}")
    assert f"over {len(fastest)} workloads: {', '.join(spans)}" in prose("README.md").replace("six", "6")


def test_the_page_of_faults_has_the_whole_catalogue() -> None:
    listed = re.findall(r"(?m)^\| \[.+\]\(causes/([\w-]+)\.md\) \| `\1` \|$", read("docs/faults.md"))
    known = [name for names in script("faults").catalogue().values() for name in names]
    assert listed == known, "run python docs/faults.py"


def test_every_cause_has_a_page() -> None:
    code = "".join(file.read_text() for file in (ROOT / "conformance/transparity_conformance").rglob("*.py"))
    apart = set(re.findall(r"(?:Cause|SimulatedFault)\(\s*\"([a-z-]+)\"|\"(gguf-[a-z-]+)\"", code))
    apart = {name for names in apart for name in names if name} | set(CAUSES.values())
    assert set(meanings()) == apart | script("faults").sentences().keys(), "add the cause to causes.toml"
    written = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs/causes").glob("*.md")}
    assert written == script("faults").cause_pages(), "run python docs/faults.py"
    shown = {name: ("```diff" in text) + ("**No single line is wrong:**" in text) for name, text in written.items()}
    assert [name for name, count in shown.items() if count != 1] == []
    columns = {name: re.findall(r"(?m)^\*\*(?:PyTorch|JAX|NumPy)\*\*$", text) for name, text in written.items()}
    reasoned = {name for name, text in written.items() if re.search(r"\*\*No (?:single|wrong) line", text)}
    assert [name for name in written if (len(columns[name]) == 3) is (name in reasoned)] == []


def test_the_page_of_families_is_that_of_their_tables_and_tests() -> None:
    assert read("docs/family-fields.md") == script("families").page(), "run python docs/families.py"


def test_every_preset_and_every_family_is_on_its_page() -> None:
    documents = re.findall(r"(?m)^\| `([\w-]+)` \|", read("docs/documents.md"))
    assert documents == list(PRESETS), f"docs/documents.md: {sorted({*documents} ^ {*PRESETS})}"
    listed = re.search(r"(?s)The checker reads these families: (.+?)\. ", read("docs/families.md"))
    assert listed
    families = re.findall(r"`([\w-]+)`", listed[1])
    assert sorted(families) == sorted(FAMILIES), f"docs/families.md: {sorted({*families} ^ {*FAMILIES})}"
