"""Compare all arrays in the result of a forward pass, such as hidden states beside a pooled output."""

from __future__ import annotations

from collections.abc import Mapping

from transparity_conformance.against.probes import telling
from transparity_conformance.against.reference import Inputs
from transparity_conformance.against.ways.way import Sides, Way, compare_way, why_not
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.capabilities.table import failed
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import CapabilityResult, not_compared
from transparity_conformance.running.inputs import answer_in, arrays_in
from transparity_conformance.running.process.running import ask

CLAIM = "forward.results"


def compare_results(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare each array of the reference's result that the port's result contains, too: by name, or by place if the
    port returns a sequence."""
    returned = {name: sides.reference.returned(inputs) for name, inputs in telling(probes).items()}
    results, first = {name: arrays_in(each) for name, each in returned.items()}, next(iter(returned))
    main, places = answer_in(returned[first]), {each: str(place) for place, each in enumerate(results[first])}
    others = {name: each for name, each in results[first].items() if each is not main and "float" in str(each.dtype)}
    found = CapabilityResult()
    if not others:
        return found
    if reason := why_not("results", sides):
        return not_compared(f"{count(len(others), 'further array')} in the reference's result: {reason}")
    try:
        actual = ask(sides.forward, "results", **probes[first])
    except PortError as error:
        return failed(CLAIM, first, error)
    for each, expected in others.items():
        array = actual.get(each, actual.get(places[each]))
        if array is None:
            found += not_compared(f"{each}: the port's result has no such array")
        elif each not in actual and tuple(array.shape) != tuple(expected.shape):
            found += not_compared(f"{each}: the port's result has an array of another shape at this place")
        else:
            having = {name: probes[name] for name, arrays in results.items() if each in arrays}
            found += compare_way(Way(CLAIM, "result", (each, places[each]), each), sides, having)
    return found
