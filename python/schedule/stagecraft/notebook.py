"""HTML for notebooks."""

from __future__ import annotations


def page(text: str, svg: str | None) -> str:
    """The text above the picture. An SVG is a document of its own, so what it defines does not meet other pictures."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    picture = "" if svg is None else f'<div style="overflow-x: auto">{svg}</div>'
    return f"<div><pre>{escaped}</pre>{picture}</div>"
