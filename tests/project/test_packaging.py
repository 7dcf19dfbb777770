import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from transparity_conformance.capabilities.port_calls import EXTRAS

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "transparity": ROOT / "reference",
    "transparity_numpy": ROOT / "reference",
    "transparity_pytorch": ROOT / "backends",
    "transparity_flax": ROOT / "backends",
    "transparity_conformance": ROOT / "conformance",
}
DATA = (".jinja", ".json", ".toml")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("transparity-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_a_wheel_has_the_five_packages_with_every_module_their_types_and_data(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    files = [(path, folder) for package, folder in PACKAGES.items() for path in (folder / package).rglob("*.*")]
    named = {path.relative_to(folder).as_posix() for path, folder in files if path.suffix in (".py", *DATA)}
    assert {name for name in names if name.endswith((".py", *DATA))} == named
    assert [name for name in names if "__pycache__" in name] == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert {Path(name).suffix for name in named} == {".py", *DATA}


@pytest.mark.slow
def test_links_of_the_readme_hold_on_an_index_and_name_files_of_the_tag(wheel: zipfile.ZipFile) -> None:
    version = Path(wheel.filename or "").name.split("-")[1]
    shown = wheel.read(f"transparity-{version}.dist-info/METADATA").decode().partition("\n\n")[2]
    links = set(re.findall(r"\]\(([^)]*)\)", shown))
    at = rf"https://(?:raw.githubusercontent|github).com/transparity/transparity/(?:blob/)?v{re.escape(version)}/"
    files = {file for link in links for file in re.findall(rf"^{at}(.+)", link)}
    assert len(files) > 10
    assert [file for file in files if not (ROOT / file.partition("#")[0]).exists()] == []
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.slow
def test_the_version_is_the_tag_of_the_commit(tmp_path: Path) -> None:
    git, me = ["git", "-C", str(tmp_path)], ["-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(tmp_path)], check=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for command, version in (
        ([*git, *me, "commit", "--quiet", "--allow-empty", "-am", "not tagged"], r"0\.0\.1\.dev\d\+g\w+"),
        ([*git, *me, "tag", "v1.2.3", "-m", "tagged"], r"1\.2\.3"),
        (["rm", "-rf", str(tmp_path / ".git")], r"0\.0\.0"),
    ):
        subprocess.run(command, check=True)
        found = subprocess.run(
            [sys.executable, "-m", "hatchling", "version"], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        assert re.fullmatch(version, found.stdout.strip())


def test_the_changelog_and_the_citation_have_the_same_version() -> None:
    newest = re.findall(r"(?m)^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text())[0]
    assert f"\nversion: {newest}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_range_has_a_tested_version() -> None:
    pins = [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    tested = {name.lower().replace("_", "-") for name in pins}
    groups = [*PYPROJECT["project"]["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    groups.append(PYPROJECT["project"]["dependencies"])
    asked = {re.split(r"\[|>=", entry)[0] for group in groups for entry in group if isinstance(entry, str)}
    assert asked - {"transparity"} <= tested


def test_every_package_of_an_extra_is_named_with_it_where_it_is_missing() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    packages = {extra: {re.split(r"\[|>=", each)[0].replace("-", "_") for each in extras[extra]} for extra in extras}
    assert all(package in packages[extra] for package, extra in EXTRAS.items())
    frameworks = packages.keys() - {"all", "benchmark", "conformance", "jax"}
    assert set().union(*(packages[extra] for extra in frameworks)) == EXTRAS.keys()


def test_the_workflow_runs_everything_on_every_version_of_python() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    versions = [entry.rpartition(" ")[2] for entry in PYPROJECT["project"]["classifiers"] if ":: 3." in entry]
    assert f"python: {json.dumps(versions)}" in workflow
    assert "run: .ci/run" in workflow
    assert PYPROJECT["project"]["requires-python"] == f">={versions[0]}"
