// Row i of a map is of token i, on the left; column j is what it has of token j, on the right.
const data = JSON.parse(document.getElementById("data").textContent), size = data.tokens.length;
const find = selector => document.querySelector(selector);
const make = (tag, text, more) => Object.assign(document.createElement(tag), { textContent: text }, more);
const square = Float32Array.from({ length: data.steps + 1 }, (_, root) => (root / data.steps) ** 2);
for (const map of data.maps) map.roots = Uint8Array.from(atob(map.roots), sign => sign.charCodeAt(0));
const percent = share => `${share < 0.0005 ? "0" : (100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

const state = { map: null, layer: 0, heads: [], chosen: null, pinned: null };  // chosen: [0, i] left, [1, j] right
const [left, right] = document.querySelectorAll(".tokens");
const lines = find(".columns canvas"), sheet = find(".square canvas");
let shown = null;  // weights of the layer, in the mean of the chosen heads

function head(layer, number) {
  const start = (layer * state.map.heads + number) * size * size;
  return state.map.roots.subarray(start, start + size * size);
}

function mean() {
  const sum = new Float32Array(size * size);
  for (const number of state.heads) head(state.layer, number).forEach((root, at) => { sum[at] += square[root]; });
  return sum.map(value => value / state.heads.length);
}

const colour = number => state.map.heads > 1 ? style(`--s${number % 8}`) : style("--heat");

function sized(canvas, width, height) {
  const scale = devicePixelRatio || 1, pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  pen.scale(scale, scale);
  return pen;
}

const LEVELS = 16;                 // of a line's weight
const CROWD = 100;                 // heads by tokens, above which the page begins with one head
const LINES = 5 * size;            // the strongest, drawn while no token is chosen; of a chosen token all

// The weights that are drawn, each [its root, head, place in the matrix], the strongest first.
function strongest() {
  const [side, token] = state.chosen || [null, -1], by = Array.from({ length: data.steps + 1 }, () => []);
  for (const number of state.heads) head(state.layer, number).forEach((root, at) => {
    if (side === null || (side ? at % size : Math.floor(at / size)) === token) by[root].push([root, number, at]);
  });
  const found = by.slice(1).reverse().flat();
  return side === null ? found.slice(0, LINES) : found;
}

function drawLines() {
  const width = lines.clientWidth, height = lines.clientHeight, pen = sized(lines, width, height), row = height / size;
  const drawn = strongest(), most = drawn.length ? square[drawn[0][0]] : 1, paths = {};
  for (const [root, number, at] of drawn) {
    const path = paths[`${Math.ceil(LEVELS * square[root] / most)} ${number}`] ||= new Path2D();
    path.moveTo(0, row * (Math.floor(at / size) + 0.5));
    path.lineTo(width, row * (at % size + 0.5));
  }
  for (const [name, path] of Object.entries(paths)) {
    const [level, number] = name.split(" ").map(Number);
    pen.strokeStyle = colour(number);
    pen.setLineDash(state.map.heads > 1 && number > 7 ? [4, 3] : []);
    pen.globalAlpha = level / LEVELS;
    pen.lineWidth = 0.7 + 2.3 * level / LEVELS;
    pen.stroke(path);
  }
}

function drawTokens() {
  const [side, token] = state.chosen || [null, -1];
  [left, right].forEach((column, here) => [...column.children].forEach((one, at) => {
    one.classList.toggle("chosen", here === side && at === token);
    one.setAttribute("aria-pressed", Boolean(state.pinned) && state.pinned[0] === here && state.pinned[1] === at);
    const share = side === 1 - here ? shown[here ? token * size + at : at * size + token] : null;
    one.lastChild.textContent = share === null || share < 0.005 ? "" : percent(share);
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

// What the chosen token has most of, or a cell of the matrix, in words.
function tell(cell) {
  const bar = find(".told"), { map } = state, [side, token] = state.chosen || [];
  const word = at => make("b", data.tokens[at]);
  const subject = at => [`${map.of} `, word(at), ...answer(at), ` ${map.to} `];
  bar.replaceChildren();
  if (cell) bar.append(...subject(cell[0]), word(cell[1]), `: ${percent(shown[cell[0] * size + cell[1]])}`);
  else if (token !== undefined) {
    const shares = data.tokens.map((_, at) => [at, shown[side ? at * size + token : token * size + at]]);
    const most = shares.filter(([, share]) => share >= 0.0005).sort((a, b) => b[1] - a[1]).slice(0, 5);
    bar.append(...side ? [word(token), ` ${map.given} `] : subject(token));
    most.forEach(([at, share], place) => bar.append(place ? " · " : "", word(at), ` ${percent(share)}`));
    if (!most.length) bar.append("nothing");
  } else return bar.append("Point at a token, or tap it, to see all of its lines and their numbers.");
  bar.append(make("span", ` — ${where()}`, { className: "of" }));
}

function answer(at) {
  if (!state.map.answered) return [];
  const [text, share] = data.answers[at];
  return [" is ", make("i", text), ` (${share}) and`];
}

function draw() {
  shown = mean();
  for (const button of document.querySelectorAll(".grid button")) {
    const { layer, head } = button.dataset;
    button.setAttribute("aria-pressed", +layer === state.layer && state.heads.includes(+head));
  }
  [...find(".heads").children].forEach((one, at) => one.setAttribute(
    "aria-pressed", at < state.map.heads ? state.heads.includes(at) : state.heads.length === state.map.heads));
  find(".layer select").value = state.layer;
  drawTokens();
  drawLines();
  drawSheet();
  mark(null);
  table();
}

function choose(token) {
  state.chosen = token || state.pinned;
  drawTokens();
  drawLines();
  tell();
}

// Of several things only one is a stop of the Tab key; the arrow keys go on from it.
function rove(items, columns) {
  items.forEach((item, at) => {
    item.tabIndex = at ? -1 : 0;
    item.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      const next = step && items[at + step];
      if (!next) return;
      event.preventDefault();
      items.forEach(one => { one.tabIndex = one === next ? 0 : -1; });
      next.focus();
    });
  });
}

function show(number) {
  const map = state.map = data.maps[number], most = map.heads * size <= CROWD ? map.heads : 1;
  state.layer = map.heads > 1 ? Math.min(state.layer, map.layers - 1) : map.layers - 1;
  state.heads = [...Array(most).keys()];
  [...find(".maps").children].forEach((one, at) => one.setAttribute("aria-pressed", at === number));
  for (const name of ["of", "to"]) find(`.columns .${name}`).textContent = map[name];
  left.setAttribute("aria-label", map.of);
  right.setAttribute("aria-label", map.to);
  find(".note").textContent = map.note;
  find(".layer").hidden = map.layers === 1;
  find(".layer select").replaceChildren(...Array.from(
    { length: map.layers }, (_, at) => make("option", at + 1, { value: at })));
  const chips = Array.from({ length: map.heads }, (_, at) => make("button", at + 1, {
    type: "button", className: `s${at % 8}${at > 7 ? " again" : ""}`, ariaLabel: `head ${at + 1}`,
    onclick: () => {
      const rest = state.heads.filter(one => one !== at);
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
  for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => choose([side, at]));
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => choose(null));
  button.addEventListener("click", () => {
    const same = state.pinned && state.pinned[0] === side && state.pinned[1] === at;
    state.pinned = same ? null : [side, at];
    choose(state.pinned);
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
  choose(null);
});
[...find(".maps").children].forEach((one, at) => one.addEventListener("click", () => show(at)));
find(".layer select").addEventListener("change", event => { state.layer = +event.target.value; draw(); });
find(".numbers").addEventListener("toggle", table);
function again() {
  colours();
  drawOverview();
  draw();
}
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", again);
const room = new Map();
const observer = new ResizeObserver(entries => entries.forEach(({ target, contentRect: { width, height } }) => {
  const before = room.get(target), now = target === lines ? `${width} ${height}` : width;
  room.set(target, now);
  if (before && before !== now) (target === lines ? drawLines : drawSheet)();
}));
for (const target of [lines, find(".matrix")]) observer.observe(target);
colours();
show(0);
