"""How notebooks show a result."""

from __future__ import annotations

from .errors import InvalidArgument


class Drawn:
    """Shows itself as the picture that `to_svg` draws."""

    __slots__ = ()

    def to_svg(self) -> str:
        raise NotImplementedError

    def _repr_svg_(self) -> str | None:
        try:
            return self.to_svg()
        except InvalidArgument:  # too large for a browser
            return None


def page(text: str, svg: str | None) -> str:
    """The text above the picture. An SVG is a document of its own, so what it defines does not meet other pictures."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    picture = "" if svg is None else f'<div style="overflow-x: auto">{svg}</div>'
    return f"<div><pre>{escaped}</pre>{picture}</div>"
