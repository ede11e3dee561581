"""Study 06 runs on `toy`, and the numbers in its finding are those it finds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

[PATH] = (Path(__file__).resolve().parents[2] / "analyses").glob("06_*.py")


def test_study_06_finds_what_it_says():
    spec = importlib.util.spec_from_file_location(PATH.stem, PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fit, judged = module.main()
    text = " ".join(module.__doc__.split())
    written = re.findall(r"(L\d(?:H\d)?) ([A-Z]\d READ|s\(M\)|negative mass|curl|H3) (\d\.\d\d)", text)
    assert len(written) >= 6
    names = {
        "H4 READ": module.ladder.READ, "H3": module.ladder.H3, "s(M)": module.reaction.SHARE,
        "negative mass": module.reaction.NEGATIVE, "curl": module.balance.CURL,
    }  # fmt: skip
    for place, what, number in written:
        layer, _, head = place[1:].partition("H")
        found = fit.row(names[what], int(layer), int(head) if head else None).value
        assert abs(found - float(number)) < 0.006, (place, what, found)
    verdicts = {one.claim: one.verdict for one in judged.claims}
    for claim, verdict in re.findall(r"\"([^\"]+)\" is (informative|weak|vacuous)", text):
        assert verdicts[claim] == verdict
