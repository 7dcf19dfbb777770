"""The evidence of a check: the state that all stages share, with the current report."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transparity.config import TransformerConfig
from transparity.parameters import check_parameters
from transparity.presets import preset as preset_called
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.calls import Ran, ReachedCalls
from transparity_conformance.checking.stages.forms import AnswerForm
from transparity_conformance.checking.systems import probes_on
from transparity_conformance.checkpoints.importing import InFolder
from transparity_conformance.diagnosis.judge import Located, Progress
from transparity_conformance.diagnosis.search.answer import Answer
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.heard import NOT_ASKED, RecordedPort
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_of, probes_with
from transparity_conformance.oracle.probes import probes as probes_of_preset
from transparity_conformance.oracle.reach.long import LongProbe, long_probes
from transparity_conformance.report.parts import RanksComparison, Stopwatch
from transparity_conformance.report.report import ClaimResult, Divergence, Interrupted, Report
from transparity_conformance.running.process.ranks import ProcessGroup, group_of, processor_seconds
from transparity_conformance.running.process.running import Port, in_precision

INTERRUPTED = (
    "the check was interrupted: later comparisons are missing, and some wrong activations may have no cause yet"
)


class LastReport:
    """The latest report on a port. A call of this object stores a new report, and passes the report to `located`."""

    def __init__(self, located: Located, report: Report | None = None) -> None:
        self.located, self.report = located, report

    def __call__(self, report: Report) -> None:
        self.report = report
        self.located(report)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """If the report contains a divergence, turn Ctrl-C into `Interrupted` with this report."""
        try:
            yield
        except KeyboardInterrupt as ended:
            report = ended.report if isinstance(ended, Interrupted) else self.report
            if report is None or report.verdict != "diverges":
                raise
            raise Interrupted(report.adding(notes=[INTERRUPTED])) from None


@dataclass(frozen=True, eq=False)
class Arguments:
    preset: str | None
    config: TransformerConfig | None
    parameters: Arrays | None
    dtype: str
    logits_only: bool
    budget: float | None
    port: str
    ranks: int
    lengths: tuple[int, ...]
    audit: bool | None
    quick: bool

    @property
    def name(self) -> str:
        return self.preset or "config"

    @functools.cached_property
    def probes(self) -> Mapping[str, Probe]:
        """Return the probes. In half precision, leave out `hot`, whose large scores leave too few digits."""
        wanted = self._every_probe()
        probes = {key: probe for key, probe in wanted.items() if key != "hot" or self.dtype not in HALF}
        return probes_on(probes, self.ranks)

    def _every_probe(self) -> Mapping[str, Probe]:
        preset, config, parameters = self.preset, self.config, self.parameters
        if config is None:
            if parameters is not None:
                raise PortError("check() was given parameters without their config; pass the config.")
            if preset is None:
                raise PortError("check() was given no model; pass a preset, a family or a config.")
            preset_called(preset)
            return probes_of_preset(preset)
        if parameters is None:
            return probes_of(config, self.name)
        if not isinstance(parameters, InFolder):  # parameters in a folder are validated when they are read
            check_parameters(config, parameters)
        return probes_with(config, parameters, self.name)

    @functools.cached_property
    def long(self) -> list[LongProbe]:
        first = next(iter(self.probes.values()))
        return long_probes(first.config, first.parameters, self.lengths)


class Evidence(LastReport):
    """The state of a check: the port's results, its recorded operations, and the current report."""

    ran: Ran
    repeated: ClaimResult
    """The claim that two runs of the port return equal results."""
    form: AnswerForm | None = None
    recorded: RecordedPort = NOT_ASKED
    """The operations of a port with wrong logits, if they were recorded."""
    answer: Answer | None = None
    is_wrong_reported: bool = False
    one_rank: RanksComparison | None = None
    """The comparison of several ranks with one rank that runs the same code."""

    def __init__(self, arguments: Arguments, port: Port, located: Located, progress: Progress) -> None:
        report = Report(arguments.name, "inconclusive", None, dtype=arguments.dtype, port=arguments.port)
        super().__init__(located, report)
        self.report: Report = report
        self.arguments, self.port, self.progress = arguments, port, progress
        self.build = in_precision(port, arguments.dtype)
        self.group: ProcessGroup | None = group_of(self.build)
        self.stopwatch = Stopwatch(functools.partial(processor_seconds, self.build))

    def add(self, *faults: Divergence, **found: Any) -> None:
        self.report = self.report.adding(*faults, **found)

    @property
    def first(self) -> Probe:
        return next(iter(self.ran.probes.values()))

    @property
    def reached(self) -> ReachedCalls:
        return self.ran.reached

    def agrees(self) -> bool:
        return self.report.verdict == "agrees"

    def is_on_ranks(self) -> bool:
        return self.group is not None

    def has_logits(self) -> bool:
        return self.form is None or self.form.has_all_logits

    @property
    def ranks(self) -> ProcessGroup:
        assert self.group is not None
        return self.group

    def is_steady(self) -> bool:
        return self.repeated.verdict == "agrees"

    def is_unsteady(self) -> bool:
        return not self.is_steady() and bool(self.report.faults)

    def is_whole(self) -> bool:
        return not self.arguments.quick

    def shows_taps(self) -> bool:
        return not self.arguments.logits_only

    @functools.cached_property
    def clock(self) -> Clock:
        return self.new_clock()

    def new_clock(self) -> Clock:
        return Clock(self.arguments.budget, self.progress)

    @property
    def judged_ranks(self) -> int:
        """Return the number of ranks, or 1 if several ranks agree with one rank, because the sharding is then right."""
        is_sharding = self.one_rank is not None and self.one_rank.one_rank != "agrees"
        return self.ranks.ranks if is_sharding else 1
