"""Count the work of a search, so that fast and slow computers search equally far.

One unit of work takes about one second on the computer on which the costs below were measured.
"""

import threading

OPERATION = 4.2e-5
"""The work of one activation of the NumPy reference, or of one recorded operation."""

NUMBER = 2.2e-9
"""The work of each element of a result."""

PRODUCT = 2.2e-10
"""The work of one multiplication and addition in a matrix product.

`OPERATION`, `NUMBER` and `PRODUCT` are fitted to 28 walks of nine models. One unit of work took 0.6 to 3.6 s. A unit
took longest in a model whose weights exceed the processor's cache.
"""

_counted = threading.local()


def count(numbers: int, products: int = 0) -> None:
    """Add the work of a result with `numbers` elements, each of which is a sum of `products` products."""
    _counted.work = done() + OPERATION + numbers * (NUMBER + PRODUCT * products)


def done() -> float:
    return getattr(_counted, "work", 0.0)
