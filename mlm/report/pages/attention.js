// Entry (i, j) of a map is the weight of token j, on the right, for token i, on the left.
const data = JSON.parse(document.getElementById("data").textContent), size = data.tokens.length;
const find = selector => document.querySelector(selector);
const make = (tag, text, properties) => Object.assign(document.createElement(tag), { textContent: text }, properties);
const square = Float32Array.from({ length: data.levels + 1 }, (_, root) => (root / data.levels) ** 2);
for (const map of data.maps) map.roots = Uint8Array.from(atob(map.roots), character => character.charCodeAt(0));

// "SUBJECT token RELATION token" is a sentence about a row of a map, "token INVERSE token" about a column.
const place = data.is_masked ? "at" : "after";
const TEXTS = {
  "Attention": {
    subject: "token", relation: "attends to", inverse: "is attended to by",
    note: "The attention weights of each token (left) over all tokens (right), by layer and head. A weight says what " +
      "a layer passes on, not what the prediction depends on.",
  },
  "Rollout": {
    subject: "state of", relation: "consists of", inverse: "contributes to the states of",
    note: "Attention multiplied through all layers up to the selected one, with half of each state from the residual " +
      "connection (Abnar & Zuidema 2020): how much of each token's embedding (right) is in a state (left).",
  },
  "Gradient saliency": {
    subject: `prediction ${place}`, relation: "depends on", inverse: `influences predictions ${place}`,
    note: `Each token (left) ${data.is_masked ? "is masked and predicted" : "predicts the next one"}: the norm of the ` +
      "gradient of the most probable token's log-probability with respect to the embedding of each " +
      `${data.is_masked ? "other " : ""}token (right), as a share of the row (Simonyan et al. 2014; Li et al. 2016).`,
  },
};
for (const map of data.maps) Object.assign(map, TEXTS[map.name]);
const percent = share => `${share < 0.0005 ? "0" : (100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

const state = { map: null, layer: 0, heads: [], selected: null, pinned: null };  // selected: [0, i] left, [1, j] right
const [left, right] = document.querySelectorAll(".tokens");
const lines = find(".columns canvas"), sheet = find(".square canvas");
let weights = null;  // of the layer, the mean over the selected heads

function head(layer, number) {
  const start = (layer * state.map.heads + number) * size * size;
  return state.map.roots.subarray(start, start + size * size);
}

function mean() {
  const sum = new Float32Array(size * size);
  for (const number of state.heads) head(state.layer, number).forEach((root, at) => { sum[at] += square[root]; });
  return sum.map(value => value / state.heads.length);
}

const color = number => number !== null && state.map.heads > 1 ? style(`--s${number % 8}`) : style("--heat");

function sized(canvas, width, height) {
  const scale = devicePixelRatio || 1, pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  pen.scale(scale, scale);
  return pen;
}

const LEVELS = 16;                 // of a line's width
const MAX_LINES = 5 * size;        // without a selected token only the strongest are drawn

// Pairs of a head, null for the mean of all heads, and its matrix of roots: what the lines show.
function drawnHeads() {
  if (state.heads.length < state.map.heads) return state.heads.map(number => [number, head(state.layer, number)]);
  return [[null, weights.map(weight => Math.round(data.levels * Math.sqrt(weight)))]];
}

// The weights to draw, each [its root, head, index in the matrix], the strongest first.
function strongestWeights() {
  const [side, token] = state.selected || [null, -1], byRoot = Array.from({ length: data.levels + 1 }, () => []);
  for (const [number, roots] of drawnHeads()) roots.forEach((root, at) => {
    if (side === null || (side ? at % size : Math.floor(at / size)) === token) byRoot[root].push([root, number, at]);
  });
  const sorted = byRoot.slice(1).reverse().flat();
  return side === null ? sorted.slice(0, MAX_LINES) : sorted;
}

function drawLines() {
  const width = lines.clientWidth, height = lines.clientHeight, pen = sized(lines, width, height), row = height / size;
  const strongest = strongestWeights(), max = strongest.length ? square[strongest[0][0]] : 1, paths = {};
  for (const [root, number, at] of strongest) {
    const path = paths[`${Math.ceil(LEVELS * square[root] / max)} ${number}`] ||= new Path2D();
    path.moveTo(0, row * (Math.floor(at / size) + 0.5));
    path.lineTo(width, row * (at % size + 0.5));
  }
  for (const [name, path] of Object.entries(paths)) {
    const [level, number] = name.split(" ").map(part => part === "null" ? null : Number(part));
    pen.strokeStyle = color(number);
    pen.setLineDash(state.map.heads > 1 && number > 7 ? [4, 3] : []);
    pen.globalAlpha = level / LEVELS;
    pen.lineWidth = 0.7 + 2.3 * level / LEVELS;
    pen.stroke(path);
  }
}

function drawTokens() {
  const [side, token] = state.selected || [null, -1];
  [left, right].forEach((column, here) => [...column.children].forEach((element, at) => {
    element.classList.toggle("selected", here === side && at === token);
    element.setAttribute("aria-pressed", Boolean(state.pinned) && state.pinned[0] === here && state.pinned[1] === at);
    const share = side === 1 - here ? weights[here ? token * size + at : at * size + token] : null;
    element.lastChild.textContent = share === null || share < 0.005 ? "" : percent(share);
  }));
}

function where() {
  const { map, layer, heads } = state, name = map.name;
  if (map.layers * map.heads === 1) return name;
  if (map.heads === 1) return `${name}, ${map.layers > 1 ? `after layer ${layer + 1}` : ""}`;
  const of = heads.length === 1 ? `head ${heads[0] + 1}` : heads.length === map.heads ? "mean of all heads" :
    `mean of heads ${heads.map(number => number + 1).join(", ")}`;
  return `${name}, layer ${layer + 1}, ${of}`;
}

// Describes the largest weights of the selected token, or a cell of the matrix, in words.
function describe(cell) {
  const bar = find(".description"), { map } = state, [side, token] = state.selected || [];
  const word = at => make("b", data.tokens[at]);
  const subject = at => [`${map.subject} `, word(at), ...prediction(at), ` ${map.relation} `];
  bar.replaceChildren();
  if (cell) bar.append(...subject(cell[0]), word(cell[1]), `: ${percent(weights[cell[0] * size + cell[1]])}`);
  else if (token !== undefined) {
    const shares = data.tokens.map((_, at) => [at, weights[side ? at * size + token : token * size + at]]);
    const largest = shares.filter(([, share]) => share >= 0.0005).sort((a, b) => b[1] - a[1]).slice(0, 5);
    bar.append(...side ? [word(token), ` ${map.inverse} `] : subject(token));
    largest.forEach(([at, share], rank) => bar.append(rank ? " · " : "", word(at), ` ${percent(share)}`));
    if (!largest.length) bar.append("nothing");
  } else return bar.append("Point at a token, or tap it, to see all its lines and numbers.");
  bar.append(make("span", ` — ${where()}`, { className: "of" }));
}

function prediction(at) {
  if (state.map.name !== "Gradient saliency" || !data.predictions.length) return [];
  const [text, share] = data.predictions[at];
  return [" is ", make("i", text), ` (${share}) and`];
}

function draw() {
  weights = mean();
  for (const button of document.querySelectorAll(".grid button")) {
    const { layer, head } = button.dataset;
    button.setAttribute("aria-pressed", +layer === state.layer && state.heads.includes(+head));
  }
  [...find(".heads").children].forEach((element, at) => element.setAttribute(
    "aria-pressed", at < state.map.heads ? state.heads.includes(at) : state.heads.length === state.map.heads));
  find(".layer select").value = state.layer;
  drawTokens();
  drawLines();
  drawSheet();
  mark(null);
  table();
}

function select(token) {
  state.selected = token || state.pinned;
  drawTokens();
  drawLines();
  describe();
}

// Makes one of several elements a stop of the Tab key; the arrow keys move to the others.
function rove(items, columns) {
  items.forEach((item, at) => {
    item.tabIndex = at ? -1 : 0;
    item.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      const next = step && items[at + step];
      if (!next) return;
      event.preventDefault();
      items.forEach(other => { other.tabIndex = other === next ? 0 : -1; });
      next.focus();
    });
  });
}

function show(number) {
  const map = state.map = data.maps[number];
  state.layer = map.heads > 1 ? Math.min(state.layer, map.layers - 1) : map.layers - 1;
  state.heads = [...Array(map.heads).keys()];
  [...find(".maps").children].forEach((element, at) => element.setAttribute("aria-pressed", at === number));
  for (const name of ["subject", "relation"]) find(`.columns .${name}`).textContent = map[name];
  find(".axis.down").textContent = `\u2190 ${map.subject}`;
  find(".axis.across").textContent = `${map.relation} \u2192`;
  left.setAttribute("aria-label", map.subject);
  right.setAttribute("aria-label", map.relation);
  find(".note").textContent = map.note;
  find(".layer").hidden = map.layers === 1;
  find(".layer select").replaceChildren(...Array.from(
    { length: map.layers }, (_, at) => make("option", at + 1, { value: at })));
  const chips = Array.from({ length: map.heads }, (_, at) => make("button", at + 1, {
    type: "button", className: `s${at % 8}${at > 7 ? " dotted" : ""}`, ariaLabel: `head ${at + 1}`,
    onclick: () => {
      const rest = state.heads.filter(head => head !== at);
      if (rest.length === state.heads.length) rest.push(at);
      if (rest.length) state.heads = rest.sort((a, b) => a - b);
      draw();
    } }));
  const all = make("button", "all heads", { type: "button", onclick: () => {
    state.heads = [...chips.keys()];
    draw();
  } });
  find(".heads").hidden = map.heads === 1;
  find(".heads").replaceChildren(...map.heads > 1 ? [...chips, all] : []);
  overview(map);
  drawOverview();
  draw();
}

const buttons = data.tokens.flatMap((text, at) => [left, right].map((column, side) => {
  const button = make("button", "", { type: "button", className: "token", title: text });
  button.append(make("bdi", text), make("span", "", { className: "share" }));
  column.append(button);
  for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => select([side, at]));
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => select(null));
  button.addEventListener("click", () => {
    const same = state.pinned && state.pinned[0] === side && state.pinned[1] === at;
    state.pinned = same ? null : [side, at];
    select(state.pinned);
  });
  return button;
}));
rove(buttons, 2);
for (const part of [".rows", ".head"]) {
  find(`.square ${part}`).append(...data.tokens.map(text => make("bdi", text, { title: text })));
}

let cell = [0, 0];
for (const name of ["pointermove", "pointerdown"]) sheet.addEventListener(name, event => {
  const side = sheet.clientWidth / size;
  mark(cell = [event.offsetY, event.offsetX].map(x => Math.max(0, Math.min(size - 1, Math.floor(x / side)))));
});
sheet.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") mark(null); });
sheet.addEventListener("focus", () => { if (sheet.matches(":focus-visible")) mark(cell); });
sheet.addEventListener("blur", () => mark(null));
sheet.addEventListener("keydown", event => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  mark(cell = cell.map((x, axis) => Math.max(0, Math.min(size - 1, x + step[axis]))));
});
addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  state.pinned = null;
  select(null);
});
[...find(".maps").children].forEach((element, at) => element.addEventListener("click", () => show(at)));
find(".layer select").addEventListener("change", event => { state.layer = +event.target.value; draw(); });
find(".numbers").addEventListener("toggle", table);
function redraw() {
  updateColors();
  drawOverview();
  draw();
}
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
const sizes = new Map();
const observer = new ResizeObserver(entries => entries.forEach(({ target, contentRect: { width, height } }) => {
  const before = sizes.get(target), now = target === lines ? `${width} ${height}` : width;
  sizes.set(target, now);
  if (before && before !== now) (target === lines ? drawLines : drawSheet)();
}));
for (const target of [lines, find(".matrix")]) observer.observe(target);
updateColors();
show(0);
