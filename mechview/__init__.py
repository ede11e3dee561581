"""mechview: open a pretrained transformer and see what its heads and its residual stream do.

`import mechview as mv` loads no torch: every name below is imported on first use. Attention is read as
`(Q K^T)(V W_O)`: a pattern that says where to look, and a message that says what to send, both kept as
thin factors; every component adds to one residual stream, and every number carries its check.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["spins"],
    submod_attrs={
        "checks": ["Parity", "parity"],
        "errors": ["MechviewError"],
        "factors": ["HeadFactors", "head_factors", "layer_factors"],
        "heads.attention": ["Attention", "attend"],
        "heads.table": ["HeadTable", "head_table"],
        "lowrank": ["LowRank"],
        "models.load": ["Model", "from_arrays", "from_bridge", "load", "open_weights", "wrap"],
        "models.one_stack": ["encoder_side"],
        "models.prompt_tables": ["Case", "PromptTable", "prompt_table", "prompt_tables"],
        "models.saved": ["from_cache"],
        "models.trace": ["Trace"],
        "models.tracing": ["trace", "traces"],
        "models.write_trace": ["WriteTrace", "write_trace", "write_traces"],
        "reporting.build": ["report"],
        "reporting.exporting": ["Exported", "export"],
        "residual.accumulated": ["MeanAttribution", "mean_attribution"],
        "residual.attend": ["ScoreLedger", "score_ledger"],
        "residual.compare": ["compare", "compare_positions"],
        "residual.compare_rows": ["Comparison"],
        "residual.blocks": ["ledger_blocks"],
        "residual.cost": ["Cost", "estimate"],
        "residual.depth": ["Depth", "depth"],
        "residual.direct": ["Attribution", "direct_attribution", "direct_attributions"],
        "residual.directions": ["NamedDirection", "mean_direction", "named_direction", "shares_along"],
        "residual.effect_sets": ["EffectSet", "effects_over", "patch_over"],
        "residual.effects": ["Effects", "effects"],
        "residual.ledger": ["Ledger", "ledger"],
        "residual.lens": ["Lens", "lens"],
        "residual.lens_changes": ["LensChanges", "lens_changes"],
        "residual.patching": ["Patching", "patch"],
        "residual.paths": ["path_patch"],
        "residual.shares": ["Shares", "shares"],
        "version": ["__version__"],
    },
)
