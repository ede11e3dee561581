"""Frames to plotly figures. Nothing here computes a number, and nothing here needs torch.

Importing this package registers a figure for each result type, by name, so that `result.figure()`
works; every function also draws a frame read back from a file. NaN is drawn as NaN and counted in the
title; a masked cell is left empty.
"""

from mechview.figures.attention import attention_map
from mechview.figures.attribution import mean_shares, shares_by_position
from mechview.figures.changes import direct_and_total, largest_changes, patched
from mechview.figures.comparison import aligned_strip, delta_grid
from mechview.figures.depth import growth_curves
from mechview.figures.effect_sets import effect_intervals
from mechview.figures.heads import head_grid, spectrum
from mechview.figures.lens_changes import lens_steps
from mechview.figures.parity import parity_by_layer
from mechview.figures.residual import lens_trajectory, rows_by_position, score_map, waterfall
from mechview.figures.solvers import beta_sweep, free_energy_landscape, magnetisation_map, retrieval_map
from mechview.figures.style import TEMPLATE, plain_text

__all__ = [
    "TEMPLATE",
    "aligned_strip",
    "attention_map",
    "beta_sweep",
    "delta_grid",
    "direct_and_total",
    "effect_intervals",
    "free_energy_landscape",
    "growth_curves",
    "head_grid",
    "largest_changes",
    "lens_steps",
    "lens_trajectory",
    "magnetisation_map",
    "mean_shares",
    "parity_by_layer",
    "patched",
    "plain_text",
    "retrieval_map",
    "rows_by_position",
    "score_map",
    "shares_by_position",
    "spectrum",
    "waterfall",
]
