"""Figures of the spin correspondence: the ladder by layer, head spins, thermodynamics, reaction, curl, relaxation.

Every line of numbers stands with its control: a shaded band is 95 % of the null's draws and resamples, a bar
the interval of the value. A marker is filled where the verdict is *informative*.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mechview.errors import CheckError
from mechview.figures.style import DIVERGING, INK, MESSAGE, PATTERN, QUIET, SEQUENTIAL, TEMPLATE, counted, scale
from mechview.results import figure_of

RUNGS = (
    "H1 residual", "H3 scalar couplings", "H4 head spins (read)", "H5 energy gradient", "M1 scalar Onsager",
    "M2 second-order Plefka", "M3 coupling term of (8)", "M4 symmetric reaction",
)  # fmt: skip
DEPTH = ("entropy S", "energy U", "heat capacity C", "ln Z")
STEPS = (
    "second step ratio, field and couplings kept", "second step ratio, couplings recomputed", "loss change, K = 0",
    "loss change, K = 2 recomputed",
)  # fmt: skip


@figure_of("SpinLayers")
def _spins(found: Any) -> go.Figure:
    return ladder_by_layer(found.frame())


@figure_of("Claims")
def _claims(found: Any) -> go.Figure:
    return claims_table(found.frame())


def ladder_by_layer(frame: pd.DataFrame, metric: str = "raw") -> go.Figure:
    """`R^2` of the ladder's rungs by layer, each with the control that decides; a `spin_models` frame."""
    rows = deciding(frame, metric)
    names = [name for name in RUNGS if (rows["quantity"] == name).any()] or sorted(set(rows["quantity"]))[:8]
    return panels(rows, names, f"spin models of each layer's writes, R2 on other documents ({metric})", "R2")


def thermo_by_depth(frame: pd.DataFrame) -> go.Figure:
    """Entropy, energy, heat capacity and `ln Z` of attention rows by layer; a `thermo` frame."""
    return panels(deciding(frame, "raw"), DEPTH, "thermodynamics of attention rows, mean over heads", "nats")


def curl_against_null(frame: pd.DataFrame) -> go.Figure:
    """The curl index by layer with its control; a `thermo` frame."""
    title = "curl of unmasked logits (0 = detailed balance)"
    return panels(deciding(frame, "raw"), ("curl index",), title, "curl index")


def relaxation(frame: pd.DataFrame) -> go.Figure:
    """Second steps and loss changes by layer; a `thermo` frame."""
    return panels(deciding(frame, "raw"), STEPS, "a block's second step, and the loss with it", "value")


def deciding(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row a layer and quantity: against the control that decides, or the first."""
    rows = frame[(frame["metric"] == metric) & frame["head"].isna()]
    return rows.sort_values("decides", ascending=False, kind="stable").drop_duplicates(["layer", "quantity"])


def panels(rows: pd.DataFrame, names: Any, title: str, unit: str) -> go.Figure:
    """One small chart a quantity: values with intervals over the band of the null."""
    present = [name for name in names if (rows["quantity"] == name).any()]
    if not present:
        raise CheckError("this table has none of the quantities that the figure shows")
    columns = min(2, len(present))
    figure = make_subplots(rows=-(-len(present) // columns), cols=columns)
    for n, name in enumerate(present):
        chosen = rows[rows["quantity"] == name].sort_values("layer")
        for line in (*_band(chosen), _values(chosen)):
            figure.add_trace(line.update(showlegend=False), row=n // columns + 1, col=n % columns + 1)
        figure.update_xaxes(title_text=f"{name}, by layer", row=n // columns + 1, col=n % columns + 1)
    height = 180 + 240 * (-(-len(present) // columns))
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["value"])}, height=height)
    figure.update_layout(showlegend=False, margin={"t": 90})
    figure.update_yaxes(title_text=unit, col=1)
    figure.update_xaxes(tickformat="d", dtick=max(1, rows["layer"].nunique() // 8))
    return figure


def _band(rows: pd.DataFrame) -> list[go.Scatter]:
    if rows["null"].isna().all():
        return []
    x = [*rows["layer"], *rows["layer"][::-1]]
    y = [*rows["null_hi"], *rows["null_lo"][::-1]]
    band = go.Scatter(x=x, y=y, mode="none", fill="toself", fillcolor=QUIET, opacity=0.3, hoverinfo="skip")
    mean = go.Scatter(x=rows["layer"], y=rows["null"], mode="lines", line={"color": QUIET, "dash": "dot"}, name="null")
    return [band, mean]


def _values(rows: pd.DataFrame) -> go.Scatter:
    filled = [PATTERN if verdict == "informative" else "#ffffff" for verdict in rows["verdict"]]
    return go.Scatter(
        x=rows["layer"], y=rows["value"], mode="lines+markers", line={"color": PATTERN},
        marker={"color": filled, "line": {"color": PATTERN, "width": 1.5}, "size": 8},
        error_y={"array": rows["hi"] - rows["value"], "arrayminus": rows["value"] - rows["lo"], "color": PATTERN},
        text=[f"{verdict}; {name}" for verdict, name in zip(rows["verdict"], rows["null_name"], strict=True)],
        hovertemplate="layer %{x}: %{y:.4g} (%{text})<extra></extra>", name="value",
    )  # fmt: skip


def head_spins(frame: pd.DataFrame, metric: str = "raw") -> go.Figure:
    """`R^2` of each head's own write by its subspace spins (READ), excess over the control that decides."""
    rows = frame[(frame["quantity"] == "H4 head spins (read)") & (frame["metric"] == metric) & frame["head"].notna()]
    if rows.empty:
        raise CheckError("this table has no head spins")
    rows = rows.sort_values("decides", ascending=False, kind="stable").drop_duplicates(["layer", "head"])
    rows = rows.assign(excess=rows["value"] - rows["null"])
    wide, null = (rows.pivot(index="layer", columns="head", values=name) for name in ("excess", "value"))
    z = wide.to_numpy(dtype=float)
    figure = go.Figure(
        go.Heatmap(
            z=z, x=[f"H{head}" for head in wide.columns], y=[f"L{layer}" for layer in wide.index],
            customdata=null.to_numpy(dtype=float), colorscale=scale(SEQUENTIAL), zmin=0.0,
            colorbar={"title": {"text": "R2 above the null"}},
            hovertemplate="%{y}%{x}: R2 %{customdata:.3f}, %{z:.3f} above its null<extra></extra>",
        )
    )  # fmt: skip
    title = f"heads as spins in their own subspace: R2 above the control ({metric})"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, z)}, height=160 + 24 * len(wide))
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def reaction_spectrum(frame: pd.DataFrame, layer: int | None = None, metric: str = "tw") -> go.Figure:
    """Eigenvalues of the reaction's symmetric half over the band of its null; a `spin_spectra` frame."""
    layer = int(frame["layer"].min()) if layer is None else layer
    rows = frame[(frame["layer"] == layer) & (frame["metric"] == metric)].sort_values("index")
    if rows.empty:
        raise CheckError(f"this table has no spectrum of layer {layer}")
    figure = go.Figure()
    if rows["null_lo"].notna().any():
        x = [*rows["index"], *rows["index"][::-1]]
        y = [*rows["null_hi"], *rows["null_lo"][::-1]]
        figure.add_trace(go.Scatter(x=x, y=y, mode="none", fill="toself", fillcolor=QUIET, opacity=0.3, name="null"))
    figure.add_trace(go.Scatter(x=rows["index"], y=rows["eigenvalue"], name=f"layer {layer}", line={"color": MESSAGE}))
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    title = f"layer {layer}: eigenvalues of the MLP's symmetric reaction ({metric}); below 0 opposes the field"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["eigenvalue"])})
    figure.update_xaxes(title_text="eigenvalue number")
    figure.update_yaxes(title_text="eigenvalue")
    return figure


def claims_table(frame: pd.DataFrame) -> go.Figure:
    """The claims as a table, verdicts coloured."""
    order = ["informative", "weak", "vacuous", "not-applicable"]
    shades = [DIVERGING[1], DIVERGING[2], DIVERGING[4], "#ffffff"]
    colour = [shades[order.index(verdict)] for verdict in frame["verdict"]]
    columns = ["claim", "test", "finding", "verdict"]
    cells = {
        "values": [list(frame[column]) for column in columns],
        "fill_color": [["#ffffff"] * len(frame)] * 3 + [colour],
    }
    figure = go.Figure(go.Table(header={"values": columns}, cells={**cells, "align": "left"}, columnwidth=[3, 3, 5, 1]))
    figure.update_layout(template=TEMPLATE, title={"text": "claims and what this model says"}, height=900)
    return figure


def all_figures(models: pd.DataFrame, thermo: pd.DataFrame, spectra: pd.DataFrame) -> dict[str, go.Figure]:
    """Every figure that these frames can give, by name."""
    makers = {
        "ladder": lambda: ladder_by_layer(models), "head_spins": lambda: head_spins(models),
        "thermo": lambda: thermo_by_depth(thermo), "curl": lambda: curl_against_null(thermo),
        "relaxation": lambda: relaxation(thermo), "reaction": lambda: reaction_spectrum(spectra),
    }  # fmt: skip
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except CheckError:
            continue
    return found
