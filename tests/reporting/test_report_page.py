"""The page as a file: nothing to fetch, nothing to run but its own script, every text escaped, NaN shown."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from reports import HOSTILE, gathered, hostile, page

from mechview.heads.notes import NOTES
from mechview.reporting.contents import page_data, table_columns, top_pairs
from mechview.reporting.nulls import gaussian_spectrum
from mechview.reporting.packing import decoded
from mechview.reporting.page import render


class Parsed(HTMLParser):
    """Tags with attributes, and the text inside each kind of tag."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "img"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module", params=["plain", "hostile"])
def parsed(request) -> Parsed:
    return Parsed(page(request.param))


def test_nothing_is_fetched(parsed):
    links = [value for _, attributes in parsed.tags for key, value in attributes.items() if key in ("src", "href")]
    assert links
    assert all(value.startswith("#") or value == "data:," for value in links)
    assert not {tag for tag, _ in parsed.tags} & {"iframe", "object", "embed", "base", "form", "img"}
    assert len(parsed.attributes("link")) == 1


def test_no_address_appears_anywhere():
    assert "http" not in page().replace("http-equiv", "")
    assert not re.search(r"url\(|@import|//[a-z]+\.", page())


def test_no_markup_sets_styles_or_handlers(parsed):
    for _, attributes in parsed.tags:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]


def test_the_policy_allows_exactly_this_script_and_style(parsed):
    policy = next(a["content"] for a in parsed.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy")
    script, style = parsed.texts["script"][-1], parsed.texts["style"][-1]
    for name, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert [a.get("type") for a in parsed.attributes("script")] == ["application/json", None]


def test_the_script_never_makes_markup_of_text(parsed):
    script = parsed.texts["script"][-1]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser", script
    )


def test_hostile_texts_arrive_as_typed():
    found = Parsed(page("hostile"))
    data = json.loads(found.texts["script"][0])
    shown = [token[0] for token in data["prompts"][0]["tokens"]["decoder"]]
    assert set(HOSTILE) <= set(shown)
    assert found.texts["h1"] == [HOSTILE[0]]
    assert set(HOSTILE) <= {text.strip(" ") for text in found.texts["li"]}
    assert len(found.attributes("script")) == 2


def test_the_data_block_has_nothing_that_could_end_it():
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page("hostile"), re.DOTALL)[1]
    assert not set("<>&\u2028\u2029") & set(block)
    assert json.loads(block)["heads"][0]["label"] == "L0H0"


def test_the_head_table_holds_every_head_and_its_numbers(parsed):
    frame = gathered().heads
    rows = parsed.attributes("td")
    keys = [attributes["data-key"] for attributes in rows if "data-key" in attributes]
    width = 2 + len(table_columns(gathered()))
    assert len(keys) == 8 * width > 8 * 12
    norms = frame[frame["metric"] == "message_norm"]["value"]
    assert all(f"{value:.9g}" == f"{float(keys[width * n + 8]):.9g}" for n, value in enumerate(norms))
    induction = gathered().scores.query("metric == 'induction'")["value"]
    place = 2 + [column["heading"] for column in table_columns(gathered())].index(NOTES["induction"].title)
    assert all(f"{value:.9g}" == f"{float(keys[width * n + place]):.9g}" for n, value in enumerate(induction))


def test_cards_say_the_role_with_its_evidence(parsed):
    assert any("induction (induction 0.9" in text for text in parsed.texts["p"])
    data = json.loads(Parsed(page()).texts["script"][0])
    assert "previous_token 0.98 ≥ 0.4, null" in data["heads"][3]["role"]
    assert "on test prompts" in {metric["group"] for metric in data["metrics"]}


def test_every_note_is_on_the_page():
    text = " ".join(next(text for text in Parsed(page()).texts["dl"] if "Cannot show" in text).split())
    for note in NOTES.values():
        assert note.title in text
        assert note.cannot in text


def test_what_is_packed_is_what_was_gathered():
    data, view = page_data(gathered(), scores=True), gathered().prompts[0]
    for head in view.heads:
        packed = data["prompts"][0]["views"][head.label]
        weight = decoded(packed["w"], head.weight.shape, 0.0, 1.0)
        masked = np.isneginf(head.score)
        assert (np.isneginf(weight) == masked).all()
        assert np.abs(weight[~masked] - head.weight[~masked]).max() <= 0.5 / 65_000
        low, high = packed["range"]
        score = decoded(packed["s"], head.score.shape, low, high)
        assert np.abs(score[~masked] - head.score[~masked]).max() <= 0.51 * (high - low) / 65_000


def test_shares_of_a_layers_write_add_up_to_one():
    view = gathered().prompts[0]
    for layer in (0, 1):
        shares = [head.share for head in view.heads if head.label.startswith(f"L{layer}H")]
        assert sum(shares) + view.bias_shares[f"decoder {layer}"] == pytest.approx(1.0, abs=1e-5)


def test_top_pairs_are_the_largest_weights_where_there_is_a_choice():
    head = gathered().prompts[0].heads[6]
    seen = ~np.isneginf(head.score)
    pairs = top_pairs(head, seen)
    rest = head.weight[1:][seen[1:]]
    assert [pair[2] for pair in pairs] == pytest.approx(sorted(rest, reverse=True)[:5], rel=1e-4)
    q, k, weight, score = pairs[0]
    assert weight == pytest.approx(head.weight[q, k], rel=1e-4)
    assert score == pytest.approx(head.score[q, k], rel=1e-4)


def broken():
    """A report with NaN in the table, the spectra and the attention of L1H2, and an infinite norm of L0H1."""
    found = gathered()
    heads, svd, view = found.heads.copy(), found.svd.copy(), found.prompts[0]
    heads.loc[(heads["label"] == "L1H2") & (heads["metric"] == "pattern_stable_rank"), "value"] = np.nan
    heads.loc[(heads["label"] == "L0H1") & (heads["metric"] == "message_norm"), "value"] = np.inf
    svd.loc[(svd["label"] == "L1H2") & (svd["side"] == "pattern") & (svd["index"] == 3), "sigma"] = np.nan
    weight = view.heads[6].weight.copy()
    weight[5, 2] = np.nan
    views = tuple(dataclasses.replace(h, weight=weight) if h.label == "L1H2" else h for h in view.heads)
    return dataclasses.replace(found, heads=heads, svd=svd, prompts=(dataclasses.replace(view, heads=views),))


def test_nan_is_shown_as_nan_and_counted():
    found = Parsed(render(broken()))
    data = json.loads(found.texts["script"][0])
    assert "2 numbers of the head table are NaN or infinite, in L0H1, L1H2." in " ".join(found.texts["li"])
    assert "1 attention weights of prompt 0 are NaN or infinite, in L1H2." in " ".join(found.texts["li"])
    assert [
        text for text, a in zip(found.texts["td"], found.attributes("td"), strict=True) if a.get("class") == "nan"
    ] == ["∞", "NaN"]
    assert data["spectra"]["pattern"][6][3] == "NaN"
    head = data["prompts"][0]["views"]["L1H2"]
    weight = decoded(head["w"], gathered().prompts[0].heads[6].weight.shape, 0.0, 1.0)
    assert np.argwhere(np.isnan(weight)).tolist() == [[5, 2]]
    assert head["top"][0][:3] == [5, 2, "NaN"]


def test_a_number_that_does_not_exist_is_not_nan():
    found = gathered()
    view = found.prompts[0]
    without = view.summaries.assign(n=np.where(view.summaries["metric"] == "induction_mass", 0, view.summaries["n"]))
    data = page_data(dataclasses.replace(found, prompts=(dataclasses.replace(view, summaries=without),)), scores=True)
    values = {metric["name"]: metric["values"] for metric in data["metrics"]}
    assert values["induction_mass"] == [None] * 8
    assert None not in values["entropy"]


def test_the_verdict_names_the_worst_comparison_or_says_there_was_none():
    parity = gathered().parity
    assert "Parity passed" in page()
    failed = parity.assign(error=np.where(parity.index == 3, 0.25, parity["error"]))
    failed["passed"] = failed["error"] < failed["tolerance"]
    text = render(dataclasses.replace(gathered(), parity=failed))
    assert "Parity failed" in text
    assert "Worst relative error 0.25 (message of L0H1); 1 of 21 comparisons are above 0.0001" in text
    unknown = render(dataclasses.replace(gathered(), parity=None))
    assert "Not checked against the model" in unknown
    assert "Parity passed" not in unknown


def test_the_null_of_the_spectra_is_normed_and_reproducible():
    null = gaussian_spectrum(64, 16, 0)
    assert (null["mean"] ** 2 + null["sd"] ** 2 * 15 / 16).sum() == pytest.approx(1.0)
    assert null["mean"].is_monotonic_decreasing
    assert null.equals(gaussian_spectrum(64, 16, 0))
    assert not null.equals(gaussian_spectrum(64, 16, 1))
    product = np.linalg.svd(
        np.random.default_rng(5).standard_normal((64, 16)) @ np.random.default_rng(6).standard_normal((16, 64))
    )[1][:16]
    assert np.abs(product / np.linalg.norm(product) - null["mean"]).max() < 0.1


def test_packed_bytes_can_be_inflated_by_a_browser():
    text = page_data(gathered(), scores=True)["prompts"][0]["views"]["L0H0"]["w"]
    assert zlib.decompress(base64.b64decode(text)).__len__() == 2 * gathered().prompts[0].heads[0].weight.size


def test_hostile_reports_are_as_large_as_plain_ones():
    assert len(render(hostile())) < 2 * len(page())
