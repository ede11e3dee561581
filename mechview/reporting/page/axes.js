// Tokens along the sides of a picture: rows at its left, columns below it, thinned out where cells are small.

const LONGEST_LABEL = 14;

function labelRoom(tokens) {
  return Math.min(Math.max(...tokens.map((token) => token[0].length)), LONGEST_LABEL) * 6.7 + 28;
}

function tokenLabels(host, tokens, cell, [width, height], place) {
  host.replaceChildren();
  host.setAttribute("width", width);
  host.setAttribute("height", height);
  host.setAttribute("aria-hidden", "true");
  host.style.overflow = "visible";
  const every = Math.max(1, Math.ceil(9 / cell));
  return tokens.map((token, n) => {
    const shown = token[0].length > LONGEST_LABEL ? token[0].slice(0, LONGEST_LABEL - 1) + "…" : token[0];
    const text = svg("text", place(n));
    text.append(svg("tspan", { class: "token-text" }, shown), svg("tspan", { dx: 4 }, String(n)), svg("title", {}, `${JSON.stringify(token[1])}, position ${n}`));
    text.style.fontSize = `${Math.min(cell + 1, 11)}px`;
    if (n % every === 0) host.append(text);
    return text;
  });
}

function rowLabels(host, tokens, cell, left) {
  const size = Math.min(cell + 1, 11);
  return tokenLabels(host, tokens, cell, [left, cell * tokens.length], (n) => ({ x: left - 6, y: (n + 0.5) * cell + size * 0.35, "text-anchor": "end" }));
}

function columnLabels(host, tokens, cell) {
  const size = Math.min(cell + 1, 11);
  return tokenLabels(host, tokens, cell, [cell * tokens.length, labelRoom(tokens) * 0.9], (n) => {
    const x = (n + 0.5) * cell + size * 0.3;
    return { x, y: 8, "text-anchor": "end", transform: `rotate(-60 ${x} 8)` };
  });
}
