# /// script
# dependencies = ["nox>=2025.5.1"]
# ///
"""Everything that one can do with this project: `nox -l` lists it, `nox -s NAME` does it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import nox

nox.options.sessions = ["conformance"]
nox.options.reuse_existing_virtualenvs = True

# Two processes of one thread each: what is tried is small, and threads that wait for each other cost more than that.
PARALLEL = ["-n", "2"]
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# XLA compiles every shape anew, and takes most of the time for it with its passes on.
COMPILE_QUICKLY = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_multi_thread_eigen=false",
]

# So `tests` has them on, as users do, for what models compute in the usual precisions, and off for all the rest.
AS_USERS_COMPILE = (
    "flax and jit and (float32 or bfloat16) and (forward or attention or loss or chunks or gradients_of_a_model)"
)


def compiled(session: nox.Session) -> dict[str, str]:
    """Python and JAX keep what they compile from run to run, JAX beside the environment that it was compiled in."""
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "JAX_COMPILATION_CACHE_DIR": f"{session.virtualenv.location}/compiled",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


PYPROJECT = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, *groups: str, project: str = ".[all]", bytecode: bool = True) -> None:
    """Install the project, editable, and `groups` within constraints.txt; again only if what is asked for changed.

    Without `bytecode` Python compiles what it imports when it does: less than all, but then one waits.
    """
    requirements = nox.project.dependency_groups(PYPROJECT, *groups)
    arguments = ["--constraint", "constraints.txt", *requirements]
    arguments += ["--editable", project] if project else []
    asked = "".join(Path(name).read_text() for name in ("pyproject.toml", "constraints.txt")) + repr(arguments)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    stamp = Path(session.virtualenv.location, "installed.sha256")
    if not stamp.exists() or stamp.read_text() != digest:
        session.install("--compile" if bytecode else "--no-compile", *arguments)
        stamp.write_text(digest)


def install_alone(session: nox.Session, group: str) -> None:
    """Install `group` without what it asks for: that is whole libraries, of which nothing is needed here."""
    requirements = nox.project.dependency_groups(PYPROJECT, group)
    session.install("--no-deps", "--constraint", "constraints.txt", *requirements)


@nox.session
def conformance(session: nox.Session) -> None:
    """The main job: every claim against every backend, and the agreement matrix."""
    install(session, "test")
    environment = SINGLE_THREADED | compiled(session) | {"XLA_FLAGS": " ".join(COMPILE_QUICKLY)}
    suite = ["conformance/transparity_conformance", "-m", "not slow"]
    session.run("pytest", *suite, *PARALLEL, *session.posargs, env=environment)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, slow ones too: conformance, the tests of the tests, and the tests of the tools."""
    install(session, "test", "benchmarks", "examples", "families", bytecode=False)
    environment = SINGLE_THREADED | compiled(session)
    # With `-k` one of the two may have nothing to do, which pytest answers with 5.
    options: dict[str, Any] = {"success_codes": [0, 5]} if session.posargs else {}
    for which, flags in ((AS_USERS_COMPILE, []), (f"not ({AS_USERS_COMPILE})", COMPILE_QUICKLY)):
        environment |= {"XLA_FLAGS": " ".join(flags)}
        session.run(
            "pytest", "conformance", "tests", "-k", which, *PARALLEL, *session.posargs, env=environment, **options
        )


@nox.session
def meta(session: nox.Session) -> None:
    """The tests of the tests: every check catches the mistake planted for it."""
    install(session, "test")
    session.run("pytest", "conformance/meta", *PARALLEL, *session.posargs, env=SINGLE_THREADED)


@nox.session
def power(session: nox.Session) -> None:
    """How good the checker is: the share of ports that it judges rightly, beside what it has to be."""
    install(session, "test")
    environment = SINGLE_THREADED | {"PYTHONPATH": "conformance"}
    session.run("python", "conformance/meta/power.py", "--jobs", "2", *session.posargs, env=environment)
    if not session.posargs:
        session.run("python", "conformance/meta/family_power.py", env=environment)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """The speed of what was shown to conform: tokens and FLOPs a second."""
    install(session, "test", "benchmarks")
    session.run("pytest", "--benchmark", *session.posargs)


@nox.session
def race(session: nox.Session) -> None:
    """Our columns beside what a user would take instead: speed as ratios and as shares of what the machine can do."""
    install(session, "test", "peers")
    install_alone(session, "peers-alone")
    session.run("python", "-m", "benchmarks.race", *session.posargs)


@nox.session
def checkpoints(session: nox.Session) -> None:
    """Real weights, text in and a known answer out: a sentence encoder and a language model, in every backend."""
    install(session, "test", "checkpoints")
    install_alone(session, "weights")
    environment = SINGLE_THREADED | compiled(session) | {"XLA_FLAGS": " ".join(COMPILE_QUICKLY)}
    session.run("pytest", "tests/checkpoints", *session.posargs, env=environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format, by ruff."""
    install(session, "lint", project="")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """Types, by mypy, strictly."""
    install(session, "types", bytecode=False)
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Who may import whom, by import-linter."""
    install(session, "imports", project=".")
    session.run("lint-imports", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Two real trainings, some minutes: a character model in two frameworks, with a plot, and a toy translation."""
    install(session, "examples")
    for script in ("character_model.py", "toy_translation.py"):
        session.run("python", f"examples/{script}", env=SINGLE_THREADED | compiled(session))


if __name__ == "__main__":
    nox.main()
