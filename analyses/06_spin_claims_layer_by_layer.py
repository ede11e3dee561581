"""06: which claims of the spin reading survive their nulls, layer by layer?

Run: `python analyses/06_spin_claims_layer_by_layer.py [MODEL] [LAYERS]`; quick settings (5 draws).

Finding, on `toy`: scalar couplings in the whole space explain next to nothing (L0 H3 0.00, L1 H3 0.01), spins in a
head's own subspace a little in layer 1 only (L1 H4 READ 0.09, L1H1 H4 READ 0.15). The linear part of the MLP is
more symmetric than with exchanged hidden units (L0 s(M) 0.54, L1 s(M) 0.64, null 0.50 to 0.52), but in layer 1 it
amplifies rather than opposes the field (L1 negative mass 0.18, null 0.53; L0 negative mass 0.49): no Onsager term
there. Curl stays within its null (L0 curl 0.26, L1 curl 0.32). "the residual stream is the external field" is vacuous.
Larger models: not in this finding.
"""

# %%
from __future__ import annotations

import sys

import mechview as mv
from mechview.spins.layers import balance, energies, ladder, ladder_mlp, maxwell, reaction, relaxation

QUANTITIES = (
    ladder.H1, ladder.H3, ladder.READ, ladder.H5, ladder.SYM, ladder.ANTI, ladder_mlp.M1, ladder_mlp.M2, ladder_mlp.M3,
    reaction.REACTION["symmetric"], reaction.SHARE, reaction.NEGATIVE, energies.ERASURE, balance.CURL, maxwell.MLP,
    maxwell.ATTENTION, energies.DESCENT, relaxation.FROZEN, *relaxation.LOSS.values(),
)  # fmt: skip


# %%
def table(fit) -> str:
    """One line a quantity, one column a layer: value, null in brackets, first letter of the verdict."""
    lines = [f"{'':48s}" + "".join(f"{f'L{layer}':>20s}" for layer in fit.layers)]
    for quantity in QUANTITIES:
        cells = []
        for layer in fit.layers:
            row = fit.row(quantity, layer)
            cells.append(f"{row.value:7.3f} ({row.null:6.3f}) {row.verdict[0]}")
        lines.append(f"{quantity:48s}" + "".join(f"{cell:>20s}" for cell in cells))
    return "\n".join(lines)


def heads(fit) -> str:
    """Heads that are informative in their own subspace, with their null."""
    rows = [r for r in fit.rows if r.quantity == ladder.READ and r.head is not None and r.metric == "raw" and r.decides]
    rows = sorted((r for r in rows if r.verdict == "informative"), key=lambda r: -r.value)
    return "\n".join(f"L{r.layer}H{r.head}: {r.value:.2f} (null {r.null:.2f}, {r.null_name})" for r in rows)


# %%
def main(spec: str = "toy", layers: str = "", **settings):
    """Fit, judge, print. `layers` as 1,10,18; all unless given."""
    model = mv.load(spec)
    wanted = [int(layer) for layer in layers.split(",")] if layers else None
    chosen = {"quick": True} | settings
    fit = mv.fit_spins(model, layers=wanted, told=lambda line: print(line, file=sys.stderr), **chosen)
    print(table(fit))
    print(heads(fit))
    judged = mv.claims(model, fit)
    for one in judged.claims:
        print(f"[{one.verdict}] {one.claim}: {one.finding}")
    return fit, judged


if __name__ == "__main__":
    main(*sys.argv[1:3])
