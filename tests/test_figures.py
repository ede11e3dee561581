"""Figures: what is drawn is the frame, repeats stay apart, NaN is seen and counted, no torch is needed."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import plotly.io as pio
import pytest

import mechview as mv
from mechview import figures
from mechview.errors import CheckError
from mechview.figures import TEMPLATE, attention_map, head_grid, parity_by_layer, plain_text, spectrum
from mechview.reporting.nulls import gaussian_spectrum
from mechview.tables import attention_frame, heads_frame, parity_frame, svd_frame, tokens_frame

PROMPT = "And the evening and the morning were the first day. And the evening"


@pytest.fixture(scope="module")
def trace(toy):
    return mv.trace(toy, PROMPT)


@pytest.fixture(scope="module")
def table(toy, trace):
    return mv.head_table(toy, parity=mv.parity(toy, trace))


def test_figures_need_no_torch():
    code = "import sys, mechview.figures; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_results_draw_themselves(table, toy, trace):
    results = (table, mv.parity(toy, trace), mv.attend(trace, heads=[(1, 2)]))
    assert [type(result.figure()).__name__ for result in results] == ["Figure"] * 3


def test_the_grid_shows_the_values_at_their_places(table):
    frame = heads_frame(table)
    figure = head_grid(frame, "pattern_norm")
    heat = figure.data[0]
    values = frame[frame["metric"] == "pattern_norm"]["value"].to_numpy().reshape(2, 4)
    np.testing.assert_array_equal(heat.z, values)
    assert list(heat.y) == ["0", "1"]
    assert figure.layout.title.text == "pattern norm of toy"
    assert heat.colorbar.title.text == "weight units"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("head", "layer")
    assert heat.zmid is None


def test_signed_values_pin_zero(table):
    heat = head_grid(heads_frame(table), "pattern_stable_rank", "z").data[0]
    assert heat.zmid == 0.0
    assert heat.colorbar.title.text == "z"


def test_nan_in_a_grid_is_marked_and_counted(table):
    frame = heads_frame(table)
    frame.loc[(frame["label"] == "L1H2") & (frame["metric"] == "pattern_norm"), "value"] = np.nan
    frame.loc[(frame["label"] == "L0H0") & (frame["metric"] == "pattern_norm"), "value"] = np.inf
    figure = head_grid(frame, "pattern_norm")
    assert figure.layout.title.text.endswith("(2 NaN or infinite)")
    assert list(figure.data[1].text) == ["+inf", "NaN"]
    assert (figure.data[1].x[1], figure.data[1].y[1]) == (2, "1")


def test_an_unknown_metric_or_head_is_named(table):
    with pytest.raises(CheckError, match="no metric nonsense"):
        head_grid(heads_frame(table), "nonsense")
    with pytest.raises(CheckError, match="no label L9H9"):
        spectrum(svd_frame(table), "L9H9")


def test_a_spectrum_has_both_sides_and_its_null(table):
    svd = svd_frame(table)
    plain = spectrum(svd, "L1H2")
    assert [trace.name for trace in plain.data] == ["pattern", "message"]
    sigma = svd[(svd["label"] == "L1H2") & (svd["side"] == "message")]["sigma"]
    np.testing.assert_array_equal(plain.data[1].y, sigma)
    assert plain.layout.yaxis.title.text == "singular value (weight units)"
    null = gaussian_spectrum(64, 16, 0)
    drawn = spectrum(svd, "L1H2", null)
    assert len(drawn.data) == 8
    line = next(trace for trace in drawn.data if trace.name.startswith("message null (Gaussian"))
    np.testing.assert_allclose(line.y, null["mean"] * np.sqrt((sigma**2).sum()))


def test_repeated_tokens_are_not_merged(trace):
    attention = mv.attend(trace, heads=[(1, 2)])
    figure = attention_map(attention_frame(attention), tokens_frame(trace))
    heat = figure.data[0]
    size = len(trace.tokens)
    assert np.asarray(heat.z).shape == (size, size)
    assert list(figure.layout.xaxis.tickvals) == list(range(size))
    shown = [text.rsplit("  ", 1)[0] for text in figure.layout.xaxis.ticktext]
    assert shown == [plain_text(token.shown) for token in trace.tokens]
    assert len(set(shown)) < size == len(set(figure.layout.xaxis.ticktext))
    assert figure.layout.yaxis.autorange == "reversed"
    drawn = np.asarray(heat.z, dtype=float)
    kept = ~np.isnan(drawn)
    np.testing.assert_array_equal(drawn[kept], trace.patterns[1][2].double().numpy()[kept])
    assert not kept[np.triu_indices(size, 1)].any()


def test_several_heads_share_a_menu(trace):
    figure = mv.attend(trace).figure()
    assert [button.label for button in figure.layout.updatemenus[0].buttons] == [
        f"L{n}H{h}" for n in (0, 1) for h in range(4)
    ]
    assert [trace.visible for trace in figure.data] == [True, True] + [False] * 14


def test_nan_attention_is_marked_and_counted(trace):
    attention = mv.attend(trace, heads=[(1, 2)])
    pattern = attention.heads[0].pattern.clone()
    pattern[4, 2] = float("nan")
    broken = dataclasses.replace(attention, heads=(dataclasses.replace(attention.heads[0], pattern=pattern),))
    figure = broken.figure()
    assert figure.layout.title.text == "attention of L1H2 on prompt 0 (1 NaN or infinite)"
    assert (list(figure.data[1].x), list(figure.data[1].y), list(figure.data[1].text)) == ([2], [4], ["NaN"])


def test_parity_shows_every_comparison_beside_the_tolerance(toy, trace):
    frame = parity_frame(mv.parity(toy, trace))
    figure = parity_by_layer(frame)
    assert sum(len(points.x) for points in figure.data) == len(frame)
    assert figure.layout.shapes[0].y0 == pytest.approx(frame["tolerance"].iloc[0])
    assert figure.layout.yaxis.type == "log"
    assert "relative error" in figure.layout.yaxis.title.text
    assert figure.layout.title.text.startswith(f"parity on {len(trace.tokens)} tokens")
    assert list(figure.layout.xaxis.categoryarray) == ["0", "1", "logits"]


def test_nan_parity_stands_out(toy, trace):
    frame = parity_frame(mv.parity(toy, trace))
    frame.loc[0, "error"] = np.nan
    figure = parity_by_layer(frame)
    assert figure.layout.title.text.endswith("(1 NaN or infinite)")
    points = next(points for points in figure.data if points.name == frame.loc[0, "quantity"])
    assert points.text[0] == "NaN"
    assert points.y[0] > frame["tolerance"].iloc[0]


HOSTILE = ["<b>bold</b>", "a<br>b", "&lt;", "$x$", '<a href="x">y</a>', "</script>"]


@pytest.mark.page
def test_labels_are_shown_as_typed(trace, tmp_path, browser):
    """In a browser, with plotly's own script: its tags, entities and formulas mean nothing."""
    tokens = tokens_frame(trace)
    texts = HOSTILE + [f"t{n}" for n in range(len(tokens) - len(HOSTILE))]
    figure = attention_map(attention_frame(mv.attend(trace, heads=[(1, 2)])), tokens.assign(shown=texts))
    figure.update_layout(width=1200, height=1000).write_html(tmp_path / "f.html", include_plotlyjs=True)
    tab = browser.new_page()
    tab.goto((tmp_path / "f.html").as_uri())
    tab.wait_for_selector(".ytick text")
    shown = tab.locator(".ytick text").evaluate_all("all => all.map(t => t.textContent.trim().split(/\\s+\\d+$/)[0])")
    assert set(HOSTILE) <= set(shown)
    assert tab.locator(".ytick a, .ytick tspan").count() == 0
    tab.close()


def test_the_template_is_registered_and_every_figure_is_drawn_with_it():
    """Wherever the package makes a figure, the same function or the one it hands the figure to names the template."""
    assert pio.templates[TEMPLATE].layout.colorway[0] == "#37719f"
    for path in sorted(Path(figures.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            text = ast.unparse(function)
            if "go.Figure(" in text or "make_subplots(" in text:
                assert "template=TEMPLATE" in text or ".update_layout(**" in text, f"{path.name}: {function.name}"
