"""How many ports are matched without a question: `python -m meta.adapting.measure [NAME …]` (in `conformance/`)."""

from __future__ import annotations

import sys
import time

from meta.adapting.catalogue import PORTS
from transparity_conformance.checking.adapting import summary
from transparity_conformance.identify.adapting.adapt import Adapted, adapt


def adapted(name: str) -> Adapted:
    """The adapter of a port of the catalogue."""
    make, config = PORTS[name]
    return adapt(make, config)


def main(names: list[str]) -> None:
    """Print a line for each port, and the sums."""
    proved = 0
    for name in names or PORTS:
        began = time.process_time()
        result = adapted(name)
        lines, code = summary(result)
        proved += code == 0
        print(f"{name:20} {code}  {time.process_time() - began:5.1f} s  {lines[0]}; {lines[-1]}")  # noqa: T201
    print(f"{proved} of {len(names or PORTS)} without a question")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
