"""Tables of prompts, directions and a head's score on the command line: what is printed adds up."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mechview as mv

pytest_plugins = ["commands"]

ROWS = [
    ("the man and the woman and the man and the", " woman", " man", "the man and the king and the man and the"),
    ("the king and the man and the king and the", " man", " king", "the king and the woman and the king and the"),
]
FOREIGN = ("the man and", " Zanzibar", " man", "the king and")
PROMPT = "the man and the woman and the man and the"


def written(folder, rows):
    file = folder / "pairs.jsonl"
    names = ("prompt", "target", "against", "corrupted")
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return str(file)


def test_ablate_over_a_table_gives_the_means_of_its_prompts(cli, tmp_path, toy):
    done = cli("ablate", "--prompts", written(tmp_path, ROWS), "--draws", "50", "--json")
    assert done.code == 0
    found = mv.effects_over(toy, [mv.Case(*row) for row in ROWS], draws=50)
    rows = {(row["component"], row["quantity"]): row for row in done.json["rows"]}
    for row in found.rows:
        assert rows[row.component, row.quantity]["mean"] == pytest.approx(row.mean, abs=1e-9)
        assert rows[row.component, row.quantity]["lo"] == pytest.approx(row.lo, abs=1e-9)
    assert done.json["manifest"]["arguments"]["draws"] == 50


def test_rows_that_the_model_cannot_be_asked_are_named_and_the_code_says_partial(cli, tmp_path):
    done = cli("patch", "--prompts", written(tmp_path, [*ROWS, FOREIGN]), "--draws", "20")
    assert done.code == 4
    assert "' Zanzibar' is" in done.err
    assert "patching of heads over 2 prompts" in done.out
    none = cli("ablate", "--prompts", "ioi")
    assert (none.code, none.out) == (2, "")
    assert "no prompt of ioi can be asked" in none.err


def test_compare_takes_targets_from_a_table_and_compares_sets(cli, tmp_path):
    file = written(tmp_path, ROWS)
    models = cli("compare", "toy", "toy", "--revision-a", "step-000400", "--prompts", file, "--draws", "20", "--json")
    assert "share" in {row["quantity"] for row in models.json["rows"]}
    same = cli("compare", file, file, "--model", "toy", "--sets", "--paired", "--draws", "20")
    assert (same.code, "identical" in same.out) == (0, True)
    assert cli("compare", file, file, "--sets").code == 2


def test_two_positions_of_one_prompt_are_compared(cli, toy):
    done = cli("compare", PROMPT, "--model", "toy", "--positions", "2,-1", "-t", " man", "--json")
    found = mv.compare_positions(mv.trace(toy, PROMPT), 2, -1, target=[" man"])
    assert [row["delta"] for row in done.json["rows"]] == [row.delta for row in found.rows]
    assert "identical" in cli("compare", PROMPT, "--model", "toy", "--positions", "2,2").out
    for wrong in (
        ("--positions", "2"),
        ("--positions", "2,99"),
        ("--positions", "a,b"),
        ("other", "--positions", "1,2"),
    ):
        refused = cli("compare", PROMPT, *wrong, "--model", "toy")
        assert (refused.code, refused.out, len(refused.err.strip().splitlines())) == (2, "", 1)


def test_patch_needs_a_second_prompt_from_somewhere(cli, tmp_path):
    assert "say what to patch into" in cli("patch", "-p", PROMPT, "-t", " man").err
    both = cli("patch", "-p", PROMPT, "--prompts", written(tmp_path, ROWS))
    assert (both.code, "leave out -p" in both.err) == (2, True)


def test_why_prints_writers_that_sum_to_the_models_score(cli, toy):
    done = cli("why", "L1H1", "--query", "-1", "--key", "3", "-p", PROMPT, "--json")
    rows = done.json["rows"]
    own = float(mv.trace(toy, PROMPT).layer_scores(1)[1, -1, 3])
    assert sum(row["value"] for row in rows) == pytest.approx(own, abs=1e-4)
    assert rows[0]["total"] == pytest.approx(own, abs=1e-5)
    said = cli("why", "L1H1", "-p", PROMPT, "--top", "3").out
    assert "remainder" in said
    assert "rows sum to it within" in said
    pattern = mv.trace(toy, PROMPT).patterns[1][1, -1]
    assert f"(position {1 + int(pattern[1:].argmax())})" in said
    assert "the pair is masked" in cli("why", "L1H1", "--query", "2", "--key", "4", "-p", PROMPT).err
    assert cli("why", "L1H9", "-p", PROMPT).code == 2


def test_resid_along_a_direction_says_what_it_is(cli, tmp_path):
    file = tmp_path / "probe.npy"
    np.save(file, np.arange(64.0) - 20)
    for name in (str(file), "L1H2.message.v0", "L0.n3.out"):
        done = cli("resid", "-p", PROMPT, "--direction", name, "--json")
        rows = done.json["rows"]
        assert sum(row["value"] for row in rows) == pytest.approx(rows[0]["total"], rel=1e-4, abs=1e-4)
        assert "read before the final norm" in rows[0]["target"]
    behind = cli("resid", "-p", PROMPT, "--direction", "L0.n3.out", "--read", "final norm", "--json").json["rows"]
    assert behind[0]["total"] != pytest.approx(rows[0]["total"])
    assert cli("resid", "-p", PROMPT, "--direction", "L0.n3.out", "-t", " man").code == 2


def test_prompts_lists_the_tables_and_shows_one(cli):
    listed = cli("prompts", "--json").json["rows"]
    assert {row["name"]: row["prompts"] for row in listed} == {"ioi": 48, "facts": 56, "repeats": 24, "random": 24}
    assert all(row["purpose"] for row in listed)
    shown = cli("prompts", "facts").out
    assert "factual recall" in shown
    assert "The capital of France is" in shown
    assert "8 random tokens, and" in cli("prompts", "random").out
    assert cli("prompts", "random", "--json").json["rows"][0]["prompt"].startswith("8 random tokens")


def test_random_tokens_serve_every_verb_over_a_set(cli):
    done = cli("ablate", "--prompts", "random", "--by", "layer", "--draws", "20", "--json")
    assert done.code == 0
    assert {row["component"] for row in done.json["rows"]} == {"L0.attn", "L0.mlp", "L1.attn", "L1.mlp"}
    chat = cli("ablate", "--prompts", "random", "--chat")
    assert (chat.code, len(chat.err.strip().splitlines())) == (2, 1)


def test_lens_changes_and_cosines_to_a_direction_on_the_command_line(cli, toy):
    done = cli("lens", "-p", PROMPT, "-t", " man", "--against", " woman", "--changes", "--json")
    found = mv.lens_changes(mv.trace(toy, PROMPT), " man", " woman")
    assert [row["value"] for row in done.json["rows"]] == pytest.approx([row.value for row in found.rows], abs=1e-9)
    assert "largest changes" in cli("lens", "-p", PROMPT, "-t", " man", "--changes").out
    assert "--changes needs a --target" in cli("lens", "-p", PROMPT, "--changes").err
    rows = cli("resid", "-p", PROMPT, "-t", " man", "--writes", "--json").json["rows"]
    parts = mv.ledger(mv.trace(toy, PROMPT), target=" man")
    seen = np.array([row["cos_direction"] for row in rows], dtype=float)  # a row of zeros has none
    np.testing.assert_allclose(seen, parts.cos_direction.flatten().numpy(), atol=1e-9)
    assert "direction: logit of" in cli("resid", "-p", PROMPT, "-t", " man", "--writes").out
    assert "--writes needs a --target" in cli("resid", "-p", PROMPT, "--writes").err


def test_resid_along_a_difference_of_means_and_over_depth(cli, tmp_path, toy):
    for name, texts in (("a.txt", "the man\nthe king\n"), ("b.txt", "the sea\n")):
        (tmp_path / name).write_text(texts)
    done = cli("resid", "-p", PROMPT, "--direction", f"means:{tmp_path}/a.txt,{tmp_path}/b.txt@L0.post", "--json")
    named = mv.mean_direction(toy, ["the man", "the king"], ["the sea"], layer=0)
    own = float(mv.trace(toy, PROMPT).stream_final[-1].double() @ named.vector)
    assert done.json["rows"][0]["total"] == pytest.approx(own, rel=1e-6)
    assert "no difference of means" in cli("resid", "-p", PROMPT, "--direction", "means:a@L1").err
    said = cli("resid", "-p", PROMPT, "--growth", "--json").json["rows"]
    assert {row["point"] for row in said} == set(mv.depth(mv.trace(toy, PROMPT)).points)
    assert "norm at position 0" in cli("resid", "-p", PROMPT, "--growth").out


def test_compare_says_which_stack_it_cannot_read(cli, t5_folder):
    assert "--stack chooses one for passes" in cli("compare", t5_folder, t5_folder, "--stack", "encoder").err
    assert "has no encoder" in cli("compare", PROMPT, PROMPT, "--model", "toy", "--stack", "encoder").err
