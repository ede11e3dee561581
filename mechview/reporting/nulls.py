"""The spectrum that no training would give: singular values of products of two Gaussian factors.

Divided by the Frobenius norm, so that only the shape is compared; the page draws it at each head's norm.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

DRAWS = 16


def gaussian_spectrum(d_model: int, d_head: int, seed: int) -> pd.DataFrame:
    """Mean and standard deviation of σ / ‖M‖ by index, for `[d_model, d_head] [d_head, d_model]`."""
    generator = np.random.default_rng(seed)
    draws = np.stack([_draw(generator, d_model, d_head) for _ in range(DRAWS)])
    return pd.DataFrame({"index": np.arange(draws.shape[1]), "mean": draws.mean(0), "sd": draws.std(0, ddof=1)})


def _draw(generator: np.random.Generator, d_model: int, d_head: int) -> np.ndarray:
    """The r x r core has the singular values of the whole product."""
    left, right = (np.asarray(np.linalg.qr(generator.standard_normal((d_model, d_head)), mode="r")) for _ in range(2))
    sigma = np.linalg.svd(left @ right.T, compute_uv=False)
    return np.asarray(sigma / np.sqrt((sigma**2).sum()))
