"""Solved spin systems as figures: a sweep over beta, a free-energy landscape, a retrieval map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mechview.figures.style import DIVERGING, MESSAGE, PATTERN, SEQUENTIAL, TEMPLATE, counted, only, scale
from mechview.results import figure_of


@figure_of("SpinFit")
def _fit(fit: Any) -> go.Figure:
    return magnetisation_map(fit.frame())


@figure_of("BetaSweep")
def _sweep(sweep: Any) -> go.Figure:
    return beta_sweep(sweep.frame())


@figure_of("Landscape")
def _landscape(found: Any) -> go.Figure:
    return free_energy_landscape(found.frame())


@figure_of("RetrievalMap")
def _retrieval(found: Any) -> go.Figure:
    return retrieval_map(found.frame())


def magnetisation_map(spins: pd.DataFrame, system: int = 0) -> go.Figure:
    """Mean spins of one system of a `spin_fits` frame: sites down, components across."""
    rows = only(only(spins, "quantity", "magnetisation"), "system", system)
    wide = rows.pivot(index="site", columns="component", values="value")
    z = wide.to_numpy(dtype=float)
    top = float(np.nanmax(np.abs(z))) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=z, x=list(wide.columns), y=list(wide.index), colorscale=scale(DIVERGING), zmin=-top, zmax=top,
            colorbar={"title": {"text": "mean spin"}}, hovertemplate="site %{y}, component %{x}: %{z:.4g}<extra></extra>",
        )
    )  # fmt: skip
    first = rows.iloc[0]
    figure.update_layout(template=TEMPLATE, title={"text": counted(f"{first['model']}: {first['status']}", z)})
    figure.update_xaxes(title_text="component", dtick=1 if z.shape[1] < 17 else None)
    figure.update_yaxes(title_text="site", autorange="reversed", dtick=1 if z.shape[0] < 33 else None)
    return figure


def beta_sweep(spins: pd.DataFrame) -> go.Figure:
    """Length of the mean spin (mean over sites) and free energy against beta; hollow where not converged."""
    rows = only(spins, "quantity", "magnetisation")
    squared = rows.assign(square=rows["value"] ** 2).groupby(["beta", "system", "site"], observed=True)["square"].sum()
    order = np.sqrt(squared).groupby("beta").mean()
    free = spins[spins["quantity"] == "free_energy"].groupby("beta")["value"].mean()
    ended = rows.groupby("beta")["status"].first()
    symbols = ["circle" if "unstable" not in text and _ended(text) else "circle-open" for text in ended]
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    for values, name, colour, second in ((order, "|m|", PATTERN, False), (free, "F", MESSAGE, True)):
        figure.add_trace(
            go.Scatter(
                x=list(values.index), y=list(values), name=name, mode="lines+markers", line={"color": colour},
                marker={"symbol": symbols if len(values) == len(symbols) else "circle"}, text=list(ended),
                hovertemplate=f"beta %{{x:.4g}}: {name} = %{{y:.5g}}<br>%{{text}}<extra></extra>",
            ),
            secondary_y=second,
        )  # fmt: skip
    title = f"{rows.iloc[0]['model']} over inverse temperature (hollow: not at a stable solution)"
    figure.update_layout(
        template=TEMPLATE, title={"text": counted(title, order)}, legend={"orientation": "h", "y": 1.08}
    )
    figure.update_xaxes(title_text="inverse temperature beta")
    figure.update_yaxes(title={"text": "mean |m|", "font": {"color": PATTERN}}, secondary_y=False)
    figure.update_yaxes(title={"text": "free energy", "font": {"color": MESSAGE}}, secondary_y=True)
    return figure


def _ended(status: str) -> bool:
    return status.startswith(("the equations hold at", "computed", "estimated"))


def free_energy_landscape(surface: pd.DataFrame) -> go.Figure:
    """Three surfaces of a `spin_landscape` frame on one colour scale."""
    names = [name for name in ("exact", "naive", "tap") if name in set(surface["method"])]
    figure = make_subplots(cols=len(names), subplot_titles=names, shared_yaxes=True)
    low, high = surface["free_energy"].min(), surface["free_energy"].max()
    for column, name in enumerate(names, 1):
        wide = only(surface, "method", name).pivot(index="m_2", columns="m_1", values="free_energy")
        figure.add_trace(
            go.Contour(
                z=wide.to_numpy(dtype=float), x=list(wide.columns), y=list(wide.index), zmin=low, zmax=high,
                colorscale=scale(SEQUENTIAL), ncontours=24, showscale=column == len(names),
                colorbar={"title": {"text": "F"}}, hovertemplate="m = (%{x:.2f}, %{y:.2f}): %{z:.4g}<extra></extra>",
            ),
            row=1, col=column,
        )  # fmt: skip
    first = surface.iloc[0]
    title = f"free energy of two sign spins, J = {first['J']:.3g}, beta = {first['beta']:.3g}"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, surface["free_energy"]), "y": 0.97})
    figure.update_xaxes(title_text="m of spin 1")
    figure.update_yaxes(title_text="m of spin 2", col=1)
    return figure


def retrieval_map(falls: pd.DataFrame) -> go.Figure:
    """Attention of states to patterns after the last update, and the energies on the way there."""
    last = only(falls, "step", falls["step"].max())
    wide = last.pivot(index="query", columns="pattern", values="weight")
    figure = make_subplots(cols=2, subplot_titles=["attention after the last update", "energy by update"])
    figure.add_trace(
        go.Heatmap(
            z=wide.to_numpy(dtype=float), x=list(wide.columns), y=list(wide.index), zmin=0, zmax=1,
            colorscale=scale(SEQUENTIAL), colorbar={"title": {"text": "weight"}, "x": 0.45},
            hovertemplate="state %{y}, pattern %{x}: %{z:.4g}<extra></extra>",
        ),
        row=1, col=1,
    )  # fmt: skip
    for query, rows in falls[falls["pattern"] == falls["pattern"].min()].groupby("query"):
        figure.add_trace(
            go.Scatter(x=list(rows["step"]), y=list(rows["energy"]), mode="lines+markers", name=f"state {query}"),
            row=1,
            col=2,
        )
    title = f"retrieval at beta = {falls['beta'].iloc[0]:.3g} (energies fall for any patterns: a theorem)"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, falls["weight"])}, showlegend=False)
    figure.update_xaxes(title_text="pattern", col=1)
    figure.update_yaxes(title_text="state", autorange="reversed", col=1)
    figure.update_xaxes(title_text="update", col=2)
    figure.update_yaxes(title_text="energy", col=2)
    return figure
