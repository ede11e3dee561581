"""Token views, `compose` and the long card: what they print is what the functions give, and what they refuse."""

from __future__ import annotations

import pytest

import mechview as mv
from mechview.tables import check_schema, copying_scores_frame, diagonal_frame

pytest_plugins = ["commands"]


def test_message_tokens_are_printed_with_their_checks(cli, toy):
    rows = cli("message", "L1H1", "--tokens", "--top", "3", "--json").json["rows"]
    found = mv.message_tokens(toy, layer=1, head=1, k=3).frame()
    assert [row["dst_token"] for row in rows] == found["dst_token"].tolist()
    assert [row["logit"] for row in rows] == pytest.approx(found["logit"].tolist())
    said = cli("message", "L1H1", "--tokens", "--top", "3").out
    assert "own token among the 5 highest: 0.255 (null" in said
    assert "products agree within" in said


def test_pattern_tokens_of_a_query_at_an_offset(cli, toy):
    rows = cli(
        "pattern", "L0H3", "--tokens", "-t", " man", "--top", "2", "--offset", "1", "--rows", "normed", "--json"
    ).json["rows"]
    assert {row["q_token"] for row in rows} == {"·man"}
    assert {row["offset"] for row in rows} == {1}
    assert [row["rank"] for row in rows] == [0, 1, 0, 1]
    found = mv.pattern_pairs(toy, layer=0, head=3, queries=[" man"], k=2, offset=1, rows="normed").frame()
    assert [row["score"] for row in rows] == pytest.approx(found["score"].tolist())


def test_readings_of_components(cli):
    rows = cli("message", "L1H1", "--readings", "--top", "2", "--json").json["rows"]
    assert {row["end"] for row in rows} == {"read", "written"}
    assert "random directions" in cli("pattern", "L1H1", "--readings", "--top", "1").out


def test_compose_prints_the_definition_and_both_nulls(cli):
    done = cli("compose", "--kind", "K", "--top", "3")
    lines = done.out.splitlines()
    assert "|M1 P2^T| / (|M1| |P2|)" in lines[0]
    assert all(word in done.out for word in ("null", "shuffled", "L0H3", "outside the null's 95 % band"))
    rows = cli("compose", "L1H1", "--json").json["rows"]
    assert {row["kind"] for row in rows} == {"Q", "K", "V"}
    assert {row["dst_label"] for row in rows} == {"L1H1"}
    parts = cli("compose", "L1H1", "--kind", "K", "--components", "--json").json["rows"]
    assert len(parts) == 64
    assert max(parts, key=lambda row: row["z"])["src_label"] == "L0H3"


def test_the_long_card_says_what_the_head_does_and_what_does_not_exist(cli):
    said = cli("head", "L1H1", "--full").out
    assert "copying          0.849 by eigenvalues" in said
    fed = next(line for line in said.splitlines() if line.startswith("fed at K by"))
    assert "L0H3 0.228" in fed
    assert "--full adds" in cli("head", "L1H1").out
    assert "fed at K by" not in cli("head", "L1H1").out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("message", "--tokens"), "a view of tokens is of one head"),
        (("message", "L1H1", "--tokens", "--readings"), "two views"),
        (("pattern", "L1H1", "-t", " man"), "--token belongs to --tokens"),
        (("pattern", "L1H1", "--tokens", "-t", "incomprehensible"), "tokens, not one"),
        (("message", "L1H1", "--tokens", "--space", "mlp7"), "is not a choice"),
        (("compose", "--kind", "O"), "is not a kind"),
        (("compose", "--components"), "needs a HEAD"),
        (("compose", "L9H9"), "does not exist"),
        (("compose", "--offset", "99999999999999"), "is not a distance between positions"),
        (("compose", "--definition", "x"), "full or kernel"),
        (("pattern", "L0H3", "--tokens", "--offset", "99999999999999"), "is not a distance between positions"),
        (("pattern", "L0H3", "--tokens", "-t", ""), "0 tokens, not one"),
        (("message", "L1H1", "--tokens", "--top", "0"), "greater than or equal to 1"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_bad_usage(cli, arguments, sentence):
    done = cli(*arguments)
    assert done.code == 2
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


@pytest.fixture(scope="module")
def results(toy):
    return {
        "ov_tokens": mv.message_tokens(toy, layer=1, head=1, k=4),
        "qk_pairs": mv.pattern_pairs(toy, layer=1, head=1, k=4),
        "svd_tokens": mv.svd_readings(toy, layer=1, head=1, components=1, draws=4),
        "composition": mv.compose(toy, "K", shuffles=1),
        "composition_components": mv.compose_components(toy, "K", layer=1, head=1),
        "eig": mv.copying(toy, layers=[1], draws=4),
        "offsets": mv.offset_curves(toy, layer=0, head=3, offsets=[0, 1, 2]),
        "similarity": mv.similarity(toy),
        "heads": mv.geometry(toy, draws=4),
    }


def test_every_result_has_its_frame_and_its_figure(results):
    for name, result in results.items():
        frame = result.frame()
        assert check_schema(frame, name) is frame
        assert len(frame)
        assert len(result.figure().data) >= 1
    check_schema(diagonal_frame(results["ov_tokens"]), "diagonal")
    check_schema(copying_scores_frame(results["eig"]), "heads")


def test_figures_show_the_frames_numbers(results):
    from mechview.figures import complex_spectrum, composition_graph, token_pairs

    pairs = results["ov_tokens"].frame()
    bars = token_pairs(pairs).data[0]
    assert list(bars.x) == pairs["logit"].tolist()
    frame = results["composition"].frame()
    heat = results["composition"].figure().data[0]
    assert heat.zmid == 0.0
    assert heat.z[3][1] == frame[(frame["src_label"] == "L0H3") & (frame["dst_label"] == "L1H1")]["excess"].item()
    graph = composition_graph(frame)
    beyond = frame[frame["value"] > frame["high"]]
    assert len([trace for trace in graph.data if trace.mode == "lines"]) == len(beyond)
    eig = results["eig"].frame()
    random, own = complex_spectrum(eig, "L1H2").data
    assert len(own.x) == 16
    assert len(random.x) == 4 * 16
