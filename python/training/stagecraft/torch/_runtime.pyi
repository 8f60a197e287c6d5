"""The compiled module. Its functions take the plain lists and dicts that the classes of this package make: use those."""

from typing import Any

def __getattr__(name: str) -> Any: ...
