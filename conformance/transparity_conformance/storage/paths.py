"""Test whether an untrusted path is a file or a folder."""

import stat
from pathlib import Path


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder. For an invalid path, return False."""
    return _mode(path, stat.S_IFDIR)


def is_file(path: Path) -> bool:
    """Return whether `path` is a regular file. For an invalid path, return False."""
    return _mode(path, stat.S_IFREG)


def _mode(path: Path, kind: int) -> bool:
    try:
        return stat.S_IFMT(path.stat().st_mode) == kind
    except (OSError, ValueError):
        return False
