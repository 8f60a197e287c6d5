"""Paths as the C++ side takes them, and files that appear whole or not at all."""

from __future__ import annotations

import os

from . import _schedule
from .errors import InvalidArgument

Path = str | bytes | os.PathLike


def path_bytes(path: Path) -> bytes:
    """The bytes of a path. Raises TypeError for what is no path."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidArgument(f"path: got {path!a}, which holds half a surrogate pair: give another") from None
    except TypeError:
        raise TypeError(f"path: got {path!r:.60} ({type(path).__name__}), expected a path") from None


def stem(path: Path) -> str:
    """The file name without folder and extension, fit for UTF-8."""
    name = os.path.splitext(os.path.basename(path_bytes(path)))[0]
    return name.decode("utf-8", "backslashreplace")


def write(path: Path, text: str) -> None:
    """Writes a temporary file and renames it. Raises FileError; a file that was to be replaced is then unchanged."""
    _schedule.write_file(path_bytes(path), text)


def extension(path: Path) -> str:
    return os.path.splitext(path_bytes(path))[1].decode("ascii", "replace").lstrip(".").lower()
