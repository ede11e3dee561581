"""Frames to plotly figures. Nothing here computes a number, and nothing here needs torch.

Importing this package registers a figure for each result type, by name, so that `result.figure()`
works; every function also draws a frame read back from a file. NaN is drawn as NaN and counted in the
title; a masked cell is left empty.
"""

from mechview.figures.attention import attention_map
from mechview.figures.attribution import mean_shares, shares_by_position
from mechview.figures.changes import direct_and_total, largest_changes, patched, patched_map
from mechview.figures.circuits import by_offset, complex_spectrum, reading_table, token_pairs
from mechview.figures.comparison import aligned_strip, delta_grid
from mechview.figures.composition import component_map, composition_graph, composition_map, similarity_map
from mechview.figures.cost import cost_bars
from mechview.figures.depth import growth_curves
from mechview.figures.effect_sets import effect_intervals
from mechview.figures.heads import head_grid, spectrum
from mechview.figures.lens_changes import lens_steps
from mechview.figures.memory import by_lag, gates_over_text, half_life_spectrum, lag_profiles, retention_map
from mechview.figures.parity import parity_by_layer
from mechview.figures.residual import lens_trajectory, rows_by_position, score_map, waterfall
from mechview.figures.scores import distance_lines, role_map, score_grid
from mechview.figures.solvers import beta_sweep, free_energy_landscape, magnetisation_map, retrieval_map
from mechview.figures.spin_layers import (
    claims_table,
    curl_against_null,
    head_spins,
    ladder_by_layer,
    reaction_spectrum,
    relaxation,
    thermo_by_depth,
)
from mechview.figures.style import TEMPLATE, plain_text

__all__ = [
    "TEMPLATE",
    "aligned_strip",
    "attention_map",
    "beta_sweep",
    "by_lag",
    "by_offset",
    "claims_table",
    "complex_spectrum",
    "component_map",
    "composition_graph",
    "composition_map",
    "cost_bars",
    "curl_against_null",
    "delta_grid",
    "direct_and_total",
    "distance_lines",
    "effect_intervals",
    "free_energy_landscape",
    "gates_over_text",
    "growth_curves",
    "half_life_spectrum",
    "head_grid",
    "head_spins",
    "ladder_by_layer",
    "lag_profiles",
    "largest_changes",
    "lens_steps",
    "lens_trajectory",
    "magnetisation_map",
    "mean_shares",
    "parity_by_layer",
    "patched",
    "patched_map",
    "plain_text",
    "reaction_spectrum",
    "reading_table",
    "relaxation",
    "retention_map",
    "retrieval_map",
    "role_map",
    "rows_by_position",
    "score_grid",
    "score_map",
    "shares_by_position",
    "similarity_map",
    "spectrum",
    "thermo_by_depth",
    "token_pairs",
    "waterfall",
]
