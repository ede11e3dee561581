"""Pictures without a browser: the same numbers as the plotly figure, order and NaN kept, hostile text as typed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from matplotlib.figure import Figure

import mechview as mv
from mechview.cli import run
from mechview.errors import OutputError
from mechview.figures.redrawn import redraw, words
from mechview.figures.static import picture
from mechview.figures.style import plain_text
from mechview.reporting.exporting import export
from mechview.results import Result, frame_of
from reports_text import HOSTILE

PROMPT = "And the evening and the morning were the first day. And the evening"
HEADERS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def drawn(figure: go.Figure) -> Figure:
    canvas = Figure()
    redraw(figure, canvas)
    return canvas


@cache
def figures() -> dict[str, go.Figure]:
    model = mv.load("toy")
    trace = mv.trace(model, PROMPT)
    results = (mv.head_table(model), mv.parity(model, trace), mv.attend(trace), mv.ledger(trace), mv.lens(trace))
    return {type(result).__name__: result.figure() for result in (*results, mv.shares(trace, 300))}


@pytest.mark.parametrize("name", ["HeadTable", "Parity", "Attention", "Ledger", "Lens", "Shares"])
@pytest.mark.parametrize("kind", HEADERS)
def test_every_standard_figure_is_drawn(name, kind):
    made = picture(figures()[name], kind, way="matplotlib")
    assert made.data.startswith(HEADERS[kind])
    assert len(made.data) > 4000
    assert made.way == "matplotlib"


def test_a_heat_map_holds_the_same_cells():
    z = [[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]]
    canvas = drawn(
        go.Figure(go.Heatmap(z=z, x=["a", "b", "c"], y=["r", "s"], colorscale=[[0, "#ffffff"], [1, "#000000"]]))
    )
    image = canvas.axes[0].images[0]
    assert np.array_equal(np.asarray(image.get_array().filled(np.nan)), z, equal_nan=True)
    assert [text.get_text() for text in canvas.axes[0].get_xticklabels()] == ["a", "b", "c"]
    assert image.get_clim() == (1.0, 6.0)


def test_a_reversed_axis_and_repeated_tokens_keep_their_order():
    figure = go.Figure(go.Heatmap(z=[[1, 2, 3]], x=[0, 1, 2], y=["r"], colorscale=[[0, "#ffffff"], [1, "#000000"]]))
    figure.update_xaxes(tickvals=[0, 1, 2], ticktext=["the", "the", "a"])
    figure.update_yaxes(autorange="reversed")
    axes = drawn(figure).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["the", "the", "a"]
    assert axes.yaxis.get_inverted()


def test_bars_stand_side_by_side_and_lines_go_through_their_points():
    figure = go.Figure(
        [go.Bar(x=["a", "b"], y=[1, 2]), go.Bar(x=["a", "b"], y=[3, None]), go.Scatter(x=["b", "a"], y=[5, 7])]
    )
    axes = drawn(figure).axes[0]
    bars = [(round(bar.get_x() + bar.get_width() / 2), bar.get_height()) for bar in axes.patches]
    assert bars[:3] == [(0, 1), (1, 2), (0, 3)]
    assert np.isnan(bars[3][1])
    assert len({bar.get_x() for bar in axes.patches}) == 4
    assert axes.lines[0].get_xydata().tolist() == [[1, 5], [0, 7]]


def test_a_band_keeps_its_colour_and_lines_without_one_take_turns():
    band = go.Scatter(
        x=[0, 1, 1, 0],
        y=[0, 0, 1, 1],
        fill="toself",
        fillcolor="rgba(255, 0, 0, 0.5)",
        line={"color": "rgb(0, 0, 255)"},
    )
    plain = [go.Scatter(x=[0, 1], y=[n, n], name=f"line {n}") for n in range(3)]
    figure = go.Figure([band, *plain])
    figure.update_layout(template="mechview", showlegend=False)
    axes = drawn(figure).axes[0]
    assert axes.patches[0].get_facecolor() == (1.0, 0.0, 0.0, 0.5)
    assert axes.lines[0].get_color() == (0.0, 0.0, 1.0, 1.0)
    assert len({line.get_color() for line in axes.lines}) == 4
    assert axes.get_legend() is None


def test_a_waterfall_starts_each_bar_where_the_last_ended():
    figure = go.Figure(
        go.Waterfall(x=["a", "b", "total"], y=[2.0, -0.5, 1.5], measure=["relative", "relative", "total"])
    )
    bars = drawn(figure).axes[0].patches
    assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(0, 2), (2, -0.5), (0, 1.5)]


def test_hidden_traces_are_not_drawn():
    axes = drawn(go.Figure([go.Scatter(x=[0, 1], y=[1, 2]), go.Scatter(x=[0, 1], y=[3, 4], visible=False)])).axes[0]
    assert len(axes.lines) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_titles_are_shown_as_typed(text):
    figure = go.Figure(go.Scatter(x=[0], y=[1], mode="markers"))
    figure.update_layout(title={"text": plain_text(text)})
    assert words(plain_text(text)) == text
    assert picture(figure, "svg", way="matplotlib").data.startswith(b"<?xml")


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(OutputError, match="surface trace cannot be drawn without a browser"):
        picture(go.Figure(go.Surface(z=[[1, 2], [3, 4]])), "png", way="matplotlib")
    with pytest.raises(OutputError, match="gif is not a kind of picture"):
        picture(go.Figure(), "gif")


def test_an_export_holds_what_the_results_say(tmp_path):
    model = mv.load("toy")
    found = export(model, [PROMPT], out=tmp_path / "out", formats=("csv", "parquet", "tex", "json"), way="matplotlib")
    assert found.missing == ()
    assert len(found.files) == 4 * 6
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*found.files, "manifest.json"])
    frame = mv.head_table(model).frame()
    assert np.allclose(pd.read_csv(tmp_path / "out/heads.csv")["value"], frame["value"], rtol=1e-12, equal_nan=True)
    assert pd.read_parquet(tmp_path / "out/heads.parquet")["value"].equals(frame["value"])
    assert (tmp_path / "out/heads.tex").read_text().count(" \\\\\n") >= len(frame)
    assert json.loads((tmp_path / "out/manifest.json").read_text())["files"] == list(found.files)


def test_a_result_in_a_notebook_is_small_and_escaped():
    result = mv.head_table(mv.load("toy"))
    shown = result._repr_html_()
    assert "<table" in shown
    assert "data:image/png;base64," in shown
    assert "80 rows" in shown
    assert len(shown) < 200_000
    hostile = Shown(texts=tuple(HOSTILE))._repr_html_()
    assert not any(tag in hostile for tag in ("<script>", "<b>bold", "<img src=x"))
    assert "&lt;b&gt;bold&lt;/b&gt;" in hostile


@dataclass(frozen=True)
class Shown(Result):
    """A result whose table is made of hostile texts, and which has no figure."""

    texts: tuple[str, ...]


@frame_of(Shown)
def shown_frame(result: Shown) -> pd.DataFrame:
    return pd.DataFrame({"text": list(result.texts)})


def test_export_refuses_in_one_line(tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    cases = [
        (["--out", str(tmp_path / "full")], "is not empty"),
        (["--out", str(tmp_path / "full/x")], "is a file"),
        ([], "say where to"),
        (["--out", str(tmp_path / "new"), "--formats", "gif"], "gif is not a format"),
        (["--out", str(tmp_path / "new"), "--formats", ","], "no format"),
    ]
    for options, words_ in cases:
        assert run(["export", "toy", "-p", "a b", *options]) != 0
        told = capsys.readouterr().err.strip().splitlines()
        assert len(told) == 1
        assert words_ in told[0]
