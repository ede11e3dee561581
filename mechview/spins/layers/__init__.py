"""The spin correspondence measured on a real model, layer by layer: fits, thermodynamics, nulls, verdicts."""
