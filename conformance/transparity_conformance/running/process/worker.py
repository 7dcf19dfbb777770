"""The program in the process of a port, `python -m transparity_conformance.running.process.worker DESCRIPTOR`."""

import contextlib
import itertools
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from transparity_conformance.capabilities.port_calls import describe_raised
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.process import wire


def serve(connection: socket.socket) -> None:
    objects, numbers = dict[int, Any](), itertools.count(1)

    def keep(value: Any) -> int:
        objects[number := next(numbers)] = value
        return number

    with contextlib.suppress(wire.Closed):
        while True:
            wire.send_answer(connection, *_answered(connection, objects, keep))


def _answered(
    connection: socket.socket, objects: dict[int, Any], keep: Callable[[Any], int]
) -> tuple[bytes, list[Any]]:
    largest = wire.largest_answer()
    try:
        function, arguments, largest, released = pickle.loads(wire.receive_request(connection))
        for number in released:
            objects.pop(number, None)
        result = function(*wire.with_handles(arguments, lambda handle: objects[handle.number]))
        return wire.encoded(("returned", result), keep, largest)
    except wire.Closed:
        raise
    except LoadError as error:
        return wire.encoded(("refused", str(error)), keep, largest)
    except BaseException as error:  # noqa: BLE001 - any exception of a port, including exits, is an answer
        return wire.encoded(("raised", describe_raised(error)), keep, largest)


def _end_with(checker: int) -> None:
    """End this process after the checker has ended, even during a call. The function polls, because a parent process
    that ends sends no signal to its children."""
    while os.getppid() == checker:
        time.sleep(1)
    os._exit(0)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    os.dup2(2, 1)  # keep the port's output out of the checker's report
    try:
        serve(connection)
    except OSError:  # the checker has ended
        pass
    finally:
        os._exit(0)  # end without running the port's threads and exit handlers


if __name__ == "__main__":
    main()
