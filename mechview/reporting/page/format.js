"use strict";
// Numbers and elements: text is only ever set as text, styles only through the object model.

const SVG_NAMESPACE = document.getElementById("svg").namespaceURI;

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function svg(name, attributes = {}, text) {
  const element = document.createElementNS(SVG_NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function toNumber(value) {
  return value === null || value === undefined ? NaN : Number(value);
}

function written(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const number = Number(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  const text = size < 1e-3 || size >= 1e5 ? number.toExponential(1) : String(Number(number.toPrecision(digits)));
  return text.replace(/-/g, "−");
}

// With decimals that suit values of size `top`, so that numbers of one grid or column align.
function aligned(value, top) {
  const number = Number(value);
  if (value === null || !Number.isFinite(number)) return written(value);
  const decimals = top > 0 ? Math.min(Math.max(2 - Math.floor(Math.log10(top)), 0), 3) : 0;
  return number.toFixed(decimals).replace("-", "−");
}

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const PALETTES = new Map();

function palette(kind) {
  if (!PALETTES.has(kind)) PALETTES.set(kind, [0, 1, 2, 3, 4].map((n) => channels(cssColour(`--${kind}${n}`))));
  return PALETTES.get(kind);
}

// Colour of a share from 0 to 1 along a palette, as three channels.
function shade(kind, share) {
  const stops = palette(kind);
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((c, n) => Math.round(c + (stops[low + 1][n] - c) * (place - low)));
}

function rgb(colour) {
  return `rgb(${colour.join(",")})`;
}

function inkOn(colour) {
  return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140 ? "#14181c" : "#ffffff";
}

function drawRamp(canvas, kind) {
  canvas.width = 120;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  for (let x = 0; x < 120; x++) {
    context.fillStyle = rgb(shade(kind, x / 119));
    context.fillRect(x, 0, 1, 1);
  }
}
