"""Numbers to tidy frames: one fact a row, stable names and dtypes, every column with a stated meaning.

Each function takes a result and gives a pandas frame of one schema; importing this package registers
them, so that `result.frame()` works. Schemas are versioned and printed by `mechview schema`. A value
that does not exist is NaN (floats) or NA (counts); a value that came out as NaN is NaN as well, and is
counted wherever it is shown.
"""

from mechview.tables.attention import attention_frame, prompt_heads_frame, tokens_frame
from mechview.tables.changes import compare_frame, effects_frame, patching_frame
from mechview.tables.columns import Column
from mechview.tables.heads import heads_frame, heads_wide, svd_frame
from mechview.tables.memory import analogies_frame, gates_frame, memory_frame, recall_frame
from mechview.tables.parity import parity_frame
from mechview.tables.residual import ledger_frame, lens_frame, score_frame, shares_frame
from mechview.tables.schemas import SCHEMAS, check_schema, schema

__all__ = [
    "SCHEMAS",
    "Column",
    "analogies_frame",
    "attention_frame",
    "check_schema",
    "compare_frame",
    "effects_frame",
    "gates_frame",
    "heads_frame",
    "heads_wide",
    "ledger_frame",
    "lens_frame",
    "memory_frame",
    "parity_frame",
    "patching_frame",
    "prompt_heads_frame",
    "recall_frame",
    "schema",
    "score_frame",
    "shares_frame",
    "svd_frame",
    "tokens_frame",
]
