// Who feeds a head and whom it feeds, and what the head does to the predicted token.

const FEEDS = { Q: "its queries", K: "its keys", V: "its values" };
const FED = { Q: "queries of", K: "keys of", V: "values of" };

function partnerTable(words, rows, of) {
  const body = make("tbody");
  for (const [label, value, null_, z] of rows) {
    const name = INDEX.has(label) ? make("a", { href: addressOf(label, "neighbours") }, label) : label;
    const row = make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, aligned(value, 1)), make("td", {}, written(z, 3)));
    if (Number(z) <= 2) row.className = "faint";
    row.title = `${written(value)}, random writer ${written(null_)}`;
    body.append(row);
  }
  const found = numberTable([words, "score", "z"], body);
  found.title = `strongest ${rows.length} of ${of}`;
  return found;
}

function partnerTables(kinds, words) {
  return Object.keys(words).filter((kind) => kinds[kind]).map((kind) => partnerTable(words[kind], kinds[kind], kinds.of[kind]));
}

function partnersSide(heading, kinds, words, none) {
  const content = kinds ? make("div", { class: "three" }, ...partnerTables(kinds, words)) : make("p", { class: "quiet" }, none);
  return make("div", {}, make("p", { class: "quiet" }, heading), content);
}

function neighboursPanel(label, found) {
  if (!DATA.details.compared) return panel("neighbours", "Neighbours", "", absentNote("composition") ?? missingNote(found));
  return panel("neighbours", "Neighbours", "composition scores, z over a writer turned at random; faint: no more than 2",
    partnersSide("Who feeds this head", found.from, FEEDS, "No head comes before it."),
    partnersSide("Whom it feeds", found.to, FED, "No head comes after it."));
}

// Direct: what the write adds to the logit as it stands. Total: what the logit loses when the head is taken away.
function effectPanel(label) {
  const effects = currentPrompt().effects;
  const own = effects?.heads[label];
  if (!own) return panel("effect", "Effect", "", absentNote("effects") ?? make("p", { class: "quiet" }, "This head does not reach the predicted token."));
  const [direct, total] = own;
  const body = make("tbody");
  const rows = [["direct, norms frozen", direct, 0]];
  if (DATA.details.totals) rows.push(["total, head taken away", total, 1], ["made up for by the rest", toNumber(direct) - toNumber(total), null]);
  for (const [words, value, place] of rows) {
    body.append(make("tr", {}, make("th", { scope: "row" }, words), make("td", {}, signed(value)), make("td", {}, make("small", {}, place === null ? "" : rankOf(effects, label, place)))));
  }
  const target = make("p", { class: "quiet" }, "On the logit of ", tokenBox("span", effects.token, JSON.stringify(effects.token)),
    `, the likeliest token after position ${effects.position}: ${written(effects.clean)} in all.`);
  const asked = DATA.details.totals ? [] : [make("p", { class: "quiet" }, "The total effect was not asked for: it takes one forward pass for each head (--effects).")];
  return panel("effect", "Effect", "logits; positive where the head helps", target, numberTable(["", "logits", "by size"], body), ...asked);
}

function signed(value) {
  const number = toNumber(value);
  return (number > 0 ? "+" : "") + written(Number.isFinite(number) ? Number(number.toPrecision(3)) : value);
}

function rankOf(effects, label, place) {
  const sizes = Object.values(effects.heads).map((pair) => Math.abs(toNumber(pair[place])));
  const own = Math.abs(toNumber(effects.heads[label][place]));
  return Number.isFinite(own) ? `${sizes.filter((size) => size > own).length + 1} of ${sizes.length} heads` : "";
}
