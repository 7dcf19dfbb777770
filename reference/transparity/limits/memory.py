"""The free memory; arrays that do not fit are rejected before they are allocated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from transparity.errors import TransparityError

MEMINFO = Path("/proc/meminfo")
CGROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Files with the limit and the use of a container's memory, in version 2 and version 1 of Linux control groups."""


def available_memory() -> int:
    """Return the bytes that the machine, the container and `ulimit` still allow this process to allocate."""
    return max(0, min(_of_the_machine(), _of_the_container(), _of_the_process()))


def check_fits(what: str, needed: int, error: type[TransparityError]) -> None:
    """Raise `error` if `what` needs more bytes than are free."""
    free = available_memory()
    if needed > free:
        raise error(
            f"{what} needs at least {in_bytes(needed)} of memory, but the free memory is {in_bytes(free)}; choose "
            "smaller sizes, or a machine with more memory."
        )


def in_bytes(count: int) -> str:
    """Return a size such as `23 GB`, to three digits."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
    count = min(count, 10**300)  # a larger count would not fit into a float
    power = min(len(units) - 1, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.3g} {units[power]}"


def _of_the_machine() -> int:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def _of_the_container() -> int:
    for limit, used in CGROUPS:
        try:
            return int(Path("/sys/fs/cgroup", limit).read_text()) - int(Path("/sys/fs/cgroup", used).read_text())
        except (OSError, ValueError):  # no such file, or no limit
            continue
    return sys.maxsize


def _of_the_process() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return sys.maxsize
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - used
