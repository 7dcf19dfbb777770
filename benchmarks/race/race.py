"""The race: compute a workload's expected result, then run the candidates that fit into memory, in turns."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environment import memory
from benchmarks.oracles import oracle_of
from benchmarks.race.candidates import Candidate
from benchmarks.race.process import Place, Process
from benchmarks.workloads import Workload

PATIENCE, LEAST_ROUNDS = 60.0, 3
"""A candidate stops once its rounds took `PATIENCE` seconds, but runs at least `LEAST_ROUNDS` rounds."""

LIMIT_MEMORY = 700_000_000
"""The approximate memory, in bytes, of a process that measures a limit."""

THREADS_OF_A_COMPILER = 4
"""The approximate number of threads that XLA or PyTorch's compiler keeps busy."""

SHARE_OF_MEMORY = 0.8
"""The share of free memory that all candidates' processes together may use."""


def free_memory() -> float:
    """Return the bytes that all candidates' processes together may use; infinity if the free memory is unknown."""
    try:
        return SHARE_OF_MEMORY * memory("MemAvailable", "/proc/meminfo")
    except OSError:
        return float("inf")


@dataclass(frozen=True)
class Conditions:
    rounds: int = 15
    threads: int = 1
    device: str = "cpu"
    memory: float = field(default_factory=free_memory)


@dataclass
class Result:
    """The times of a candidate on a workload, or the reason for a failure."""

    candidate: Candidate
    workload: Workload
    ready: dict[str, Any] = field(default_factory=dict)
    """The first answer of the candidate's process: conformity with the expected result, peak memory, startup times."""
    seconds: dict[int, float] = field(default_factory=dict)
    failed: str = ""
    """The reason for a failure, in one sentence; empty if the candidate is timed."""


Told = Callable[[Result], None]
"""A function that is called with a result as soon as the candidate is ready or has failed."""


def race(
    workload: Workload, candidates: Sequence[Candidate], conditions: Conditions, told: Told = lambda result: None
) -> list[Result]:
    fits, too_large = fitting(able_to(workload, candidates, conditions.device), workload, conditions.memory)
    for result in too_large:
        told(result)
    places = {
        root: Place(oracle_of(workload, root), conditions.threads, conditions.device)
        for root in {candidate.root for candidate in fits}
    }
    return run_rounds(fits, workload, places, conditions.rounds, told) + too_large


def able_to(workload: Workload, candidates: Sequence[Candidate], device: str) -> list[Candidate]:
    return [each for each in candidates if not each.why_missing() and not each.why_not(workload, device)]


def fitting(candidates: Sequence[Candidate], workload: Workload, memory: float) -> tuple[list[Candidate], list[Result]]:
    """Return the candidates that together fit into `memory`, by priority, and failed results for all others."""
    left, fits, too_large = memory, [], []
    for candidate in by_priority(candidates):
        needed = LIMIT_MEMORY if candidate.is_limit else workload.memory
        if needed <= left:
            left -= needed
            fits.append(candidate)
        else:
            sizes = f"{needed / 1e9:.3g} GB are needed, and {left / 1e9:.3g} of {memory / 1e9:.3g} GB are left"
            reason = f"does not fit into memory: {sizes}; choose fewer candidates with -k"
            too_large.append(Result(candidate, workload, failed=reason))
    return fits, too_large


def by_priority(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in this order: limits, our implementations, the first peer of each kind, the second peer of
    each kind, and so on."""
    turns: Counter[str] = Counter()
    order = []
    for candidate in candidates:
        turns[candidate.kinds[0]] += not (candidate.is_limit or candidate.ours)
        order.append((not candidate.is_limit, not candidate.ours, turns[candidate.kinds[0]]))
    return [candidates[index] for index in sorted(range(len(candidates)), key=order.__getitem__)]


def shuffled(number: int, rounds: int, seed: int = 0) -> Iterator[list[int]]:
    """Yield a random order of the candidates for each round."""
    shuffle = random.Random(seed)
    for _ in range(rounds):
        yield shuffle.sample(range(number), number)


def run_rounds(
    candidates: Sequence[Candidate], workload: Workload, places: Mapping[Path | None, Place], rounds: int, told: Told
) -> list[Result]:
    """Start the candidates' processes, then run every candidate once per round.

    On a CPU, candidates start one after another, to time their first calls undisturbed. On a GPU, compilation takes far
    longer than all rounds, so several candidates start at once.
    """
    results = [Result(candidate, workload) for candidate in candidates]
    processes: list[Process] = []
    try:
        for number, result in enumerate(results):
            place = places[result.candidate.root]
            at_once = 1 if place.device == "cpu" else max(1, place.threads // THREADS_OF_A_COMPILER)
            starting = [each.candidate for each in results[len(processes) : number + at_once]]
            processes += [Process(candidate, places[candidate.root]) for candidate in starting]
            _get_ready(processes[number], result)
            told(result)
        for turn, order in enumerate(shuffled(len(results), rounds)):
            for index in order:
                taken = sum(results[index].seconds.values())
                if not results[index].failed and (turn < LEAST_ROUNDS or taken < PATIENCE):
                    _time(processes[index], results[index], turn)
    finally:
        for process in processes:
            process.close()
    return results


def _get_ready(process: Process, result: Result) -> None:
    answer = process.answer()
    process.pause()
    if "failed" in answer:
        result.failed = one_sentence(answer["failed"])
        return
    result.ready = {name: answer[name] for name in ("conformity", "first_seconds", "import_seconds")}
    result.ready["peak_bytes"] = answer["device_peak_bytes"] or answer["peak_bytes"]
    if not result.candidate.is_limit:
        result.failed = refusal(answer["conformity"])


def refusal(held: dict[str, float] | None) -> str:
    """Return why a candidate is not timed; empty if the result agrees with the expected result."""
    if held is None:
        return "refused: the result was not compared with the oracle"
    if held["share"] <= 1:
        return ""
    if held["error"] == float("inf"):
        return "refused: the result does not have the expected shape and precision"
    return f"refused: the result differs by {held['error']:.3g}, beyond the budget of {held['budget']:.3g}"


def _time(process: Process, result: Result, turn: int) -> None:
    answer = process.run()
    if "failed" in answer:
        result.failed, result.seconds = one_sentence(answer["failed"]), {}
    else:
        result.seconds[turn] = answer["seconds"]


def one_sentence(text: str, longest: int = 200) -> str:
    line = text.strip().partition("\n")[0].rstrip(".")
    return line if len(line) <= longest else line[: longest - 1] + "…"
