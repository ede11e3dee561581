// Small charts as SVG: a spectrum with its null band, and bars by position.

const WIDTH = 420;

function ticks(low, top, count = 4) {
  const rough = (top - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-4); n * step <= top + step * 1e-4; n++) found.push(n * step);
  return found;
}

function frame(height, top, title, low = 0) {
  const area = { left: 40, right: WIDTH - 6, top: 8, bottom: height - 24 };
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img" });
  chart.append(svg("title", {}, title));
  const y = (value) => area.bottom - ((area.bottom - area.top) * (value - low)) / (top - low);
  for (const tick of ticks(low, top)) {
    chart.append(svg("line", { class: "tick", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) }));
    chart.append(svg("text", { x: area.left - 6, y: y(tick) + 4, "text-anchor": "end" }, written(tick, 3)));
  }
  return { chart, area, y };
}

function path(points) {
  return points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function largest(values) {
  const finite = values.filter(Number.isFinite);
  return finite.length && Math.max(...finite) > 0 ? Math.max(...finite) : 1;
}

// Singular values of one side; the null is drawn at the head's own norm.
function spectrumChart(label, side) {
  const sigma = DATA.spectra[side][INDEX.get(label)].map(toNumber);
  const norm = Math.sqrt(sigma.reduce((sum, value) => sum + value * value, 0));
  const mean = DATA.null.mean.map((value) => value * norm);
  const spread = DATA.null.sd.map((value) => 2 * value * norm);
  const wrong = sigma.filter((value) => !Number.isFinite(value)).length;
  const start = sigma.slice(0, 3).map((value) => written(value)).join(", ");
  const title = `Singular values of the ${side} of ${label}: ${start} and so on; ${wrong} NaN or infinite.`;
  const { chart, area, y } = frame(170, largest([...sigma, ...mean]) * 1.04, title);
  const x = (n) => area.left + 6 + ((area.right - area.left - 12) * n) / Math.max(sigma.length - 1, 1);
  if (Number.isFinite(norm)) {
    const upper = mean.map((value, n) => [x(n), y(value + spread[n])]);
    const lower = mean.map((value, n) => [x(n), y(Math.max(value - spread[n], 0))]).reverse();
    chart.append(svg("path", { class: "nullband", d: path([...upper, ...lower]) + "Z" }));
    chart.append(svg("path", { class: "nullline", d: path(mean.map((value, n) => [x(n), y(value)])) }));
    chart.append(svg("path", { class: `line ${side}`, d: path(sigma.map((value, n) => [x(n), y(value)])) }));
  }
  sigma.forEach((value, n) => chart.append(spectrumPoint(value, n, side, x(n), y)));
  chart.append(svg("text", { x: x(0), y: 165, "text-anchor": "middle" }, "1"));
  chart.append(svg("text", { x: x(sigma.length - 1), y: 165, "text-anchor": "end" }, `${sigma.length} (index)`));
  return chart;
}

function spectrumPoint(value, n, side, x, y) {
  if (!Number.isFinite(value)) return svg("text", { class: "nan-text", x, y: y(0) - 4, "text-anchor": "middle" }, "NaN");
  const dot = svg("circle", { class: `dot ${side}`, cx: x.toFixed(1), cy: y(value).toFixed(1), r: 2.6 });
  dot.append(svg("title", {}, `σ${n + 1} = ${written(value)}`));
  return dot;
}

// Bars over a whole number from 0, with what each is on hover.
function barChart(title, values, words, unit) {
  const { chart, area, y } = frame(140, largest(values) * 1.04, title);
  const step = (area.right - area.left) / values.length;
  values.forEach((value, n) => {
    const left = area.left + n * step;
    if (!Number.isFinite(value)) {
      if (Number.isNaN(value)) chart.append(svg("text", { class: "nan-text", x: left + step / 2, y: area.bottom - 2, "text-anchor": "middle" }, "NaN"));
      return;
    }
    const bar = svg("rect", {
      class: "bar", x: left + step * 0.12, width: Math.max(step * 0.76, 0.5), y: y(value), height: area.bottom - y(value), rx: 1,
    });
    bar.append(svg("title", {}, `${words(n)}: ${written(value)}`));
    chart.append(bar);
  });
  chart.append(svg("text", { x: area.left + step / 2, y: 135, "text-anchor": "middle" }, "0"));
  chart.append(svg("text", { x: area.right, y: 135, "text-anchor": "end" }, `${values.length - 1} (${unit})`));
  return chart;
}

// How much a head wrote at each position.
function writeChart(label, queries) {
  const sizes = currentPrompt().views[label].write.map(toNumber);
  const finite = sizes.map((value) => (Number.isFinite(value) ? value : -1));
  const most = finite.indexOf(Math.max(...finite));
  const title = `Norm of what ${label} writes by position; largest ${written(sizes[most])} at position ${most}.`;
  return barChart(title, sizes, (n) => `${queries[n][0]} (${n})`, "position");
}

// Mean weight at each distance between query and key, over the queries that see a key at that distance.
function distanceChart(label, weight, queries, keys) {
  const [sums, counts] = [new Array(keys.length).fill(0), new Array(keys.length).fill(0)];
  queries.forEach((_, q) => keys.forEach((__, k) => {
    const value = weight[q * keys.length + k];
    if (value === -Infinity) return;
    sums[Math.abs(q - k)] += value;
    counts[Math.abs(q - k)] += 1;
  }));
  const means = sums.map((sum, n) => (counts[n] ? sum / counts[n] : -Infinity));
  const title = `Mean attention of ${label} by distance: ${means.slice(0, 4).map((value, n) => `${n} ${written(value, 3)}`).join(", ")} and so on.`;
  return barChart(title, means, (n) => `distance ${n}, ${counts[n]} pairs`, "distance");
}

// Entropy of each query's weights; weights that sum to less than 1 (a learned sink) leave the sink out.
function entropyChart(label, weight, queries, keys) {
  const entropies = queries.map((_, q) => {
    let sum = 0;
    for (let k = 0; k < keys.length; k++) {
      const value = weight[q * keys.length + k];
      if (value !== -Infinity && value !== 0) sum -= value * Math.log(value);
    }
    return sum;
  });
  const title = `Entropy of the attention of ${label} by position, in nats; ${written(entropies[entropies.length - 1], 3)} at the last.`;
  return barChart(title, entropies, (n) => `${queries[n][0]} (${n}), nats`, "position");
}
