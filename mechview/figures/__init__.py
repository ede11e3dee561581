"""Frames to plotly figures. Nothing here computes a number, and nothing here needs torch.

Importing this package registers a figure for each result type, by name, so that `result.figure()`
works; every function also draws a frame read back from a file. NaN is drawn as NaN and counted in the
title; a masked cell is left empty.
"""

from mechview.figures.attention import attention_map
from mechview.figures.changes import direct_and_total, largest_changes, patched
from mechview.figures.heads import head_grid, spectrum
from mechview.figures.memory import by_lag, gates_over_text, half_life_spectrum, lag_profiles, retention_map
from mechview.figures.parity import parity_by_layer
from mechview.figures.residual import lens_trajectory, rows_by_position, score_map, waterfall
from mechview.figures.style import TEMPLATE, plain_text

__all__ = [
    "TEMPLATE",
    "attention_map",
    "by_lag",
    "direct_and_total",
    "gates_over_text",
    "half_life_spectrum",
    "head_grid",
    "lag_profiles",
    "largest_changes",
    "lens_trajectory",
    "parity_by_layer",
    "patched",
    "plain_text",
    "retention_map",
    "rows_by_position",
    "score_map",
    "spectrum",
    "waterfall",
]
