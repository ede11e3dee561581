"""Numbers to tidy frames: one fact a row, stable names and dtypes, every column with a stated meaning.

Each function takes a result and gives a pandas frame of one schema; importing this package registers
them, so that `result.frame()` works. Schemas are versioned and printed by `mechview schema`. A value
that does not exist is NaN (floats) or NA (counts); a value that came out as NaN is NaN as well, and is
counted wherever it is shown.
"""

from mechview.tables.attention import attention_frame, prompt_heads_frame, tokens_frame
from mechview.tables.changes import compare_frame, effects_frame, patching_frame
from mechview.tables.circuits import (
    circuit_frame,
    copying_scores_frame,
    diagonal_frame,
    eig_frame,
    geometry_frame,
    offsets_frame,
    readings_frame,
    weight_scores_frame,
)
from mechview.tables.columns import Column
from mechview.tables.composition import components_frame, composition_frame, similarity_frame
from mechview.tables.cost import attribution_frame, cost_frame, mean_attribution_frame
from mechview.tables.depth import depth_frame
from mechview.tables.effect_sets import effect_set_frame
from mechview.tables.factors import factors_frame
from mechview.tables.heads import heads_frame, heads_wide, svd_frame
from mechview.tables.lens_changes import lens_changes_frame
from mechview.tables.memory import analogies_frame, gates_frame, lstm_gates_frame, memory_frame, recall_frame
from mechview.tables.parity import parity_frame
from mechview.tables.residual import ledger_frame, lens_frame, score_frame, shares_frame
from mechview.tables.schemas import SCHEMAS, check_schema, schema
from mechview.tables.scores import causal_frame, distances_frame, roles_frame, scores_frame
from mechview.tables.solvers import landscape_frame, retrieval_frame, spin_frame, sweep_frame
from mechview.tables.spin_layers import (
    claims_frame,
    spin_layers_frame,
    spin_spectra_frame,
    spin_weights_frame,
    thermo_frame,
)

__all__ = [
    "SCHEMAS",
    "Column",
    "analogies_frame",
    "attention_frame",
    "attribution_frame",
    "causal_frame",
    "check_schema",
    "circuit_frame",
    "claims_frame",
    "compare_frame",
    "components_frame",
    "composition_frame",
    "copying_scores_frame",
    "cost_frame",
    "depth_frame",
    "diagonal_frame",
    "distances_frame",
    "effect_set_frame",
    "effects_frame",
    "eig_frame",
    "factors_frame",
    "gates_frame",
    "geometry_frame",
    "heads_frame",
    "heads_wide",
    "landscape_frame",
    "ledger_frame",
    "lens_changes_frame",
    "lens_frame",
    "lstm_gates_frame",
    "mean_attribution_frame",
    "memory_frame",
    "offsets_frame",
    "parity_frame",
    "patching_frame",
    "prompt_heads_frame",
    "readings_frame",
    "recall_frame",
    "retrieval_frame",
    "roles_frame",
    "schema",
    "score_frame",
    "scores_frame",
    "shares_frame",
    "similarity_frame",
    "spin_frame",
    "spin_layers_frame",
    "spin_spectra_frame",
    "spin_weights_frame",
    "svd_frame",
    "sweep_frame",
    "thermo_frame",
    "tokens_frame",
    "weight_scores_frame",
]
