"""Frames to one page: a self-contained HTML report of a model's heads.

`gather` asks the numeric modules for everything a report holds, as frames and arrays with a manifest;
what comes after reads only those. `content` says it in words, `packing` makes it small, `page` puts it
into HTML that fetches nothing and runs nothing but its own script, `build` writes the file.
"""

from mechview.reporting.build import report

__all__ = ["report"]
