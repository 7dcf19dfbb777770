# /// script
# dependencies = ["nox>=2025.5.1"]
# ///
"""The project's nox sessions: `nox -l` lists all sessions, and `nox -s NAME` runs one of them."""

import hashlib
import os
import shutil
from pathlib import Path

import nox

nox.options.sessions = ["conformance"]
nox.options.reuse_existing_virtualenvs = True
# uv installs in half of pip's processor time, but it does not read pip's settings.
PIP_SETTINGS = {"PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL"}
PIP_FILES = [Path(each).expanduser() for each in ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")]
HAS_PIP_SETTINGS = bool(PIP_SETTINGS & os.environ.keys()) or any(file.exists() for file in PIP_FILES)
nox.options.default_venv_backend = "virtualenv" if HAS_PIP_SETTINGS else "uv|virtualenv"
# Fail if one of the three versions of Python for the session `installed` is missing.
nox.options.error_on_missing_interpreters = True

# Run tests in two processes with one thread each: in small models, threads cost more time than they save.
PARALLEL = ["-n", "2"]
SIDE_BY_SIDE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # otherwise, the first process takes most of a GPU's memory
}

# XLA compiles a program for every shape. These flags turn off its slowest passes.
COMPILE_QUICKLY = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_gpu_autotune_level=0",
]

# Selects the tests of `as_users_compile`, the only session that compiles with all passes of XLA, as users do.
AS_USERS_COMPILE = (
    "flax and jit and (float32 or bfloat16) and (forward or attention or loss or chunks or model_gradients)"
    " or pytorch and compile"
)


def compiled(session: nox.Session) -> dict[str, str]:
    """Return the environment variables that make Python and JAX keep compiled code for the next run."""
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "JAX_COMPILATION_CACHE_DIR": f"{session.virtualenv.location}/compiled",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def quickly(session: nox.Session) -> dict[str, str]:
    """Return the environment variables for tests in two processes, in which JAX compiles without slow passes."""
    return SIDE_BY_SIDE | compiled(session) | {"XLA_FLAGS": " ".join(COMPILE_QUICKLY)}


PYPROJECT = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, *groups: str, project: str = ".[all]") -> None:
    """Install the project as editable, and dependency groups with the versions of constraints.txt.

    If pyproject.toml, constraints.txt and the arguments are unchanged, do nothing. Do not compile installed packages to
    bytecode, because that takes 39 s of processor time and saves 6 s.
    """
    requirements = nox.project.dependency_groups(PYPROJECT, *groups)
    arguments = ["--constraint", "constraints.txt", *requirements]
    arguments += ["--editable", project] if project else []
    asked = "".join(Path(name).read_text() for name in ("pyproject.toml", "constraints.txt")) + repr(arguments)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    stamp = Path(session.virtualenv.location, "installed.sha256")
    if not stamp.exists() or stamp.read_text() != digest:
        session.install("--no-compile", *arguments)
        stamp.write_text(digest)


def install_alone(session: nox.Session, group: str) -> None:
    """Install the packages of a dependency group without their dependencies; these are large and not needed."""
    requirements = nox.project.dependency_groups(PYPROJECT, group)
    session.install("--no-deps", "--constraint", "constraints.txt", *requirements)


@nox.session
def conformance(session: nox.Session) -> None:
    """Test every claim about every backend, and print the agreement matrix (the main job)."""
    install(session, "test")
    suite = ["conformance/transparity_conformance", "-m", "not slow", "--deferred"]
    session.run("pytest", *suite, *PARALLEL, *session.posargs, env=quickly(session))


@nox.session
def choose(session: nox.Session) -> None:
    """Record which lines each test runs, and use the record to choose the tests of `nox -s tests`."""
    install(session, "test", "benchmarks", "choosing", "examples", "runtimes")
    session.run("python", "-m", "tests.choosing", "record", *PARALLEL, env=quickly(session))
    session.run("python", "-m", "tests.choosing", "choose", env=quickly(session) | {"PYTHONPATH": "conformance"})


def run_tests(session: nox.Session, *options: str) -> None:
    """Run the tests that conftest.py selects for a session, in two processes."""
    install(session, "test", "benchmarks", "examples", "runtimes")
    session.run("pytest", "conformance", "tests", *PARALLEL, *options, *session.posargs, env=quickly(session))


@nox.session
def quick(session: nox.Session) -> None:
    """Run one case of each short test; this takes two minutes."""
    run_tests(session, "--quick")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests except long and deferred tests, with cases for about half a second per test."""
    run_tests(session)


@nox.session
def nightly(session: nox.Session) -> None:
    """Run all cases of all tests; `-- --record-durations` also writes tests/durations.json."""
    run_tests(session, "--every-case")


@nox.session
def as_users_compile(session: nox.Session) -> None:
    """Test claims about compiled models, with all passes of XLA and with torch.compile."""
    install(session, "test")
    environment = SIDE_BY_SIDE | compiled(session)
    suite = ["conformance/transparity_conformance", "--every-case", "-k", AS_USERS_COMPILE]
    session.run("pytest", *suite, *PARALLEL, *session.posargs, env=environment)


@nox.session
def meta(session: nox.Session) -> None:
    """Test the tests: plant faults, and check that the claims catch them."""
    install(session, "test")
    session.run("pytest", "conformance/meta", "--every-case", *PARALLEL, *session.posargs, env=SIDE_BY_SIDE)


def measure(session: nox.Session, *options: str, **variables: str) -> None:
    """Measure the checker on a pool, which is a set of planted bugs or right ports."""
    environment = SIDE_BY_SIDE | {"PYTHONPATH": "conformance"} | variables
    session.run("python", "-m", "meta.measure", *options, env=environment)


@nox.session
def equivalents(session: nox.Session) -> None:
    """Check that the mutations that are listed as equivalent compute unchanged results."""
    install(session, "test")
    measure(session, "--pool", "equivalents", *session.posargs)


@nox.session
def power(session: nox.Session) -> None:
    """Measure how often the checker is right: on planted bugs, right ports, attacks, adapters and more."""
    install(session, "test")
    measure(session, "--jobs", "2", *session.posargs)
    if not session.posargs:
        pools = ("attacks", "audits --twins", "adapting", "adapters", "alignment", "fitting", "modules", "ranks")
        for pool in map(str.split, pools):
            measure(session, "--pool", *pool)


@nox.session
def exam(session: nox.Session) -> None:
    """Run the exam: bugs in other people's published code. An interrupted exam continues where it stopped."""
    install(session, "test", "exam")
    install_alone(session, "exam-alone")
    measure(session, "--pool", "exam", "--jobs", "2", "--json", "reports/exam.json", "--resume", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Try 20,000 malformed inputs; each must soon end in a verdict or in an error of one sentence."""
    install(session, "test")
    measure(session, "--pool", "fuzz", *session.posargs, **quickly(session))


@nox.session
def calibrate(session: nox.Session) -> None:
    """Measure the constants of the tolerances again, and fail if a constant is too small."""
    install(session, "test")
    session.run("python", "-m", "transparity_conformance.oracle.calibrate", *session.posargs, env=SIDE_BY_SIDE)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Time our three columns and other libraries, relative to each other and to the machine's limits."""
    install(session, "test", "peers")
    install_alone(session, "peers-alone")
    session.run("pytest", "--benchmark", *(session.posargs or ["-k", "race and not tiny"]))


@nox.session
def checkpoints(session: nox.Session) -> None:
    """Run two models with real weights in every backend, and compare their outputs with known outputs."""
    install(session, "test", "checkpoints")
    install_alone(session, "weights")
    session.run("pytest", "tests/checkpoints", *session.posargs, env=quickly(session))


@nox.session
def lint(session: nox.Session) -> None:
    """Check the code's style and format with ruff, and the prose of pages, docstrings and messages."""
    install(session, "lint", project="")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", *session.posargs)
    session.run("python", "tests/site/test_prose.py")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy in strict mode."""
    install(session, "types")
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Check with import-linter that packages import only from lower layers."""
    install(session, "imports", project=".")
    session.run("lint-imports", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the website into build/site/html; fail on a broken link. `-- serve` opens the site in a browser."""
    install(session, "docs")
    session.run("python", "-m", "docs.site", *session.posargs, env=quickly(session))


@nox.session
def dist(session: nox.Session) -> None:
    """Build the wheel and the source archive into dist/, and run the wheel with pipx."""
    session.install("--constraint", "constraints.txt", *nox.project.dependency_groups(PYPROJECT, "release"))
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build")
    session.run("python", "-m", "twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    notes = session.run("python", "docs/release_notes.py", silent=True, log=False)
    Path("build").mkdir(exist_ok=True)
    Path("build/release-notes.md").write_text(str(notes), encoding="utf-8")
    (wheel,) = Path("dist").resolve().glob("*.whl")
    port = Path(session.create_tmp(), "port.py")
    port.write_text("from transparity_numpy.port import build\n", encoding="utf-8")
    check = ["transparity", "check", f"{port.resolve()}:build", "--preset", "notes-lm"]
    elsewhere = {"PIPX_HOME": str(port.parent.resolve() / "pipx"), "PYTHONPATH": ""}
    session.run("pipx", "run", "--spec", f"{wheel}", *check, env=elsewhere)


@nox.session(python=["3.11", "3.12", "3.13"], requires=["dist"], reuse_venv=False)
def installed(session: nox.Session) -> None:
    """Check the wheel in empty environments, with and without extras, and each documented command."""
    (wheel,), (archive,) = Path("dist").resolve().glob("*.whl"), Path("dist").resolve().glob("*.tar.gz")
    script, version = Path("tests/release/installed.py").resolve(), wheel.name.split("-")[1]
    session.chdir(session.create_tmp())
    for asked, extras in ((f"{wheel}", "alone"), (f"{wheel}[all]", "extras"), (f"{archive}", "extras")):
        again = ["--force-reinstall", "--no-deps"] if asked == f"{archive}" else []
        session.install("--no-compile", *again, asked)
        session.run("python", "-I", str(script), version, extras, env={"PYTHONPATH": ""} | SIDE_BY_SIDE)
    if session.python == "3.13":
        shutil.unpack_archive(archive, "clone")
        (clone,) = Path("clone").resolve().iterdir()
        documented = [str(script.with_name("documented.py")), str(wheel), str(clone), *session.posargs]
        session.run("python", *documented, env={"PYTHONPATH": ""} | SIDE_BY_SIDE)


@nox.session
def examples(session: nox.Session) -> None:
    """Train two small models for some minutes: a character model in two frameworks, and a toy translator."""
    install(session, "examples")
    for script in ("character_model", "toy_translation"):
        session.run("python", "-m", f"examples.{script}", env=SIDE_BY_SIDE | compiled(session))


if __name__ == "__main__":
    nox.main()
