"""mechview: open a pretrained transformer and see what its heads and its residual stream do.

`import mechview as mv` loads no torch: every name below is imported on first use. Attention is read as
`(Q K^T)(V W_O)`: a pattern that says where to look, and a message that says what to send, both kept as
thin factors; every component adds to one residual stream, and every number carries its check.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "checks": ["Parity", "parity"],
        "errors": ["MechviewError"],
        "factors": ["HeadFactors", "head_factors", "layer_factors"],
        "heads.attention": ["Attention", "attend"],
        "heads.table": ["HeadTable", "head_table"],
        "lowrank": ["LowRank"],
        "models.load": ["Model", "from_arrays", "from_bridge", "load", "open_weights", "wrap"],
        "models.trace": ["Trace"],
        "models.tracing": ["trace", "traces"],
        "recurrent.cells": ["LstmTrace", "lstm_trace"],
        "recurrent.load": ["load_lstm"],
        "recurrent.memory": ["Memory", "memory"],
        "recurrent.modules": ["wrap_lstm"],
        "recurrent.recall": ["Recall", "recall"],
        "recurrent.weights": ["Lstm"],
        "reporting.build": ["report"],
        "residual.attend": ["ScoreLedger", "score_ledger"],
        "residual.compare": ["compare", "compare_positions"],
        "residual.compare_rows": ["Case", "Comparison"],
        "residual.effects": ["Effects", "effects"],
        "residual.ledger": ["Ledger", "ledger"],
        "residual.lens": ["Lens", "lens"],
        "residual.patching": ["Patching", "patch"],
        "residual.paths": ["path_patch"],
        "residual.shares": ["Shares", "shares"],
        "version": ["__version__"],
    },
)
