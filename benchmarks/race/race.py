"""The race itself: for each workload its oracle, its heats, and what came of them."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.race.candidates import Candidate
from benchmarks.race.oracles import write_oracle
from benchmarks.race.rounds import Result, free_memory, heats, run_heat
from benchmarks.race.standings import FINALISTS, finals
from benchmarks.race.workloads import Workload, inputs_of, parameters_of


@dataclass(frozen=True)
class Conditions:
    """What is the same for all candidates."""

    rounds: int = 15
    threads: int = 1
    device: str = "cpu"
    keeps_heap: bool = False
    """Whether the allocator was told to keep large blocks."""
    memory: float = field(default_factory=free_memory)


def race(
    workloads: Sequence[Workload],
    candidates: Sequence[Candidate],
    conditions: Conditions,
    done: Callable[[str], None] = lambda step: None,
) -> list[Result]:
    """Every candidate on every workload that it can do; where that takes several heats, ours and the best peers meet
    once more. `done` is called at each step."""
    results: list[Result] = []
    for workload, groups in planned(workloads, candidates, conditions):
        with tempfile.TemporaryDirectory() as folder:
            done(f"{workload.name}: the oracle")
            write_oracle(Path(folder), workload, parameters_of(workload), inputs_of(workload))
            run = functools.partial(
                run_heat,
                workload=workload,
                folder=Path(folder),
                rounds=conditions.rounds,
                threads=conditions.threads,
                device=conditions.device,
                done=done,
            )
            found = [result for index, heat in enumerate(groups) for result in run(heat, heat=index)]
            last = finals(found, conditions.memory) if len(groups) > 1 else []
            results += found + [result for index, heat in enumerate(last, 1) for result in run(heat, heat=-index)]
    return results


def planned(
    workloads: Sequence[Workload], candidates: Sequence[Candidate], conditions: Conditions
) -> Iterator[tuple[Workload, list[list[Candidate]]]]:
    """Each workload, and the heats of those who are installed and can do it."""
    present = [candidate for candidate in candidates if candidate.why_missing() is None]
    for workload in workloads:
        able = [candidate for candidate in present if candidate.why_not(workload, conditions.device) is None]
        yield workload, heats(able, workload, conditions.memory)


def steps(workloads: Sequence[Workload], candidates: Sequence[Candidate], conditions: Conditions) -> int:
    """How often `race` calls `done`, at most."""
    number = 0
    for _, groups in planned(workloads, candidates, conditions):
        sizes = [len(heat) for heat in groups]
        if len(groups) > 1:
            able = {each.name: each for heat in groups for each in heat}
            ours = Counter(each.kinds[0] for each in able.values() if each.ours)
            always = sum(all(each in heat for heat in groups) for each in groups[0])
            sizes += [always + of_kind + FINALISTS for of_kind in ours.values()]
        number += 1 + sum(sizes) * (1 + conditions.rounds)
    return number
