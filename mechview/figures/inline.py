"""A result in a notebook: its first rows and one small picture, a few hundred kilobytes at the most.

The picture is drawn by matplotlib (the `static` extra), because an interactive figure would put megabytes
into every saved notebook; `.figure()` gives that one. Text is escaped where the table is made.
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any

from mechview.errors import MechviewError
from mechview.figures.static import picture

ROWS = 8
LARGEST = 300_000  # bytes of the picture


def shown(result: Any) -> str:
    """HTML of the result's kind, its first rows, and its picture."""
    frame = result.frame()
    table = frame.head(ROWS).to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)
    kind = escape(type(result).__name__)
    return f"<p><b>{kind}</b>, {len(frame)} rows</p>{table}{_image(result)}"


def _image(result: Any) -> str:
    try:
        data = picture(result.figure(), "png", way="matplotlib").data
    except (MechviewError, ImportError):  # no figure of this kind, or no library that draws: the rows are enough
        return ""
    if len(data) > LARGEST:
        return ""
    return f'<img alt="{escape(type(result).__name__)}" width="640" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
