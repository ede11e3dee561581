"""Spin models with vector spins: responses, solvers, couplings that depend on the field, and what they predict.

`mv.spins.solve(mv.spins.MeanField(J=J, h=h))`. Convention throughout: `E = -1/2 sum_ij J_ij s_i.s_j - sum_i h_i.s_i`
with symmetric J and no diagonal, spins of length R, uniform probability measure, `F = -log Z / beta`. Importing
this package loads no torch: names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "block": ["SpinBlock"],
        "conventions": ["Converted", "counting_log_partition", "from_afem", "from_article", "from_dia", "from_neq"],
        "couplings": ["coupling_term", "softmax_couplings", "total_response"],
        "fits": ["SolverError", "SpinFit"],
        "fixed_points": ["Status"],
        "kinetic": ["entropy_production", "entropy_production_proxy"],
        "models": [
            "TAP",
            "AdaptiveTAP",
            "Exact",
            "Hopfield",
            "KineticMeanField",
            "MeanField",
            "MonteCarlo",
            "SteepestDescent",
        ],
        "single": [
            "FORMS",
            "SiteLaw",
            "amplitude",
            "covariance",
            "divergence",
            "entropy",
            "inverse_response",
            "log_partition",
            "response",
            "variances",
            "zero_temperature",
        ],
        "solving": ["solve", "susceptibility"],
        "views": ["beta_sweep", "landscape", "retrieval_map"],
    },
)
