// A map as matrices: a large one with readable cells, small ones of all layers and heads, and a table.
// The colors follow the page's, light or dark.
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = name => [1, 3, 5].map(at => parseInt(style(name).slice(at, at + 2), 16));
let ramp = [];
function updateColors() {
  const [low, high] = [channels("--ground"), channels("--heat")];
  ramp = Array.from({ length: 256 }, (_, at) => low.map((from, i) => Math.round(from + (high[i] - from) * at / 255)));
}

function drawSheet() {
  const available = find(".matrix").clientWidth - Math.min(find(".square .rows").offsetWidth, 130) - 20;
  const cell = Math.max(11, Math.min(34, Math.floor(available / size)));
  find(".square").style.setProperty("--cell", `${cell}px`);
  find(".square").style.setProperty("--label", `${Math.min(13, cell)}px`);
  sheet.style.width = sheet.style.height = `${cell * size}px`;
  const pen = sized(sheet, cell * size, cell * size), max = weights.reduce((a, b) => Math.max(a, b), 0) || 1;
  const gap = cell > 14 ? 1 : 0;
  weights.forEach((value, at) => {
    pen.fillStyle = `rgb(${ramp[Math.round(255 * value / max)]})`;
    pen.fillRect(at % size * cell, Math.floor(at / size) * cell, cell - gap, cell - gap);
  });
  find(".matrix h2").textContent = where();
  find(".scale span:last-child").textContent = `0 to ${percent(max)}`;
}

function drawOverview() {
  for (const button of document.querySelectorAll(".grid button")) {
    const pen = sized(button.firstChild, size / devicePixelRatio, size / devicePixelRatio);
    const image = pen.createImageData(size, size);
    const roots = head(+button.dataset.layer, +button.dataset.head);
    roots.forEach((root, at) => image.data.set([...ramp[root], 255], 4 * at));
    pen.putImageData(image, 0, 0);
  }
}

function mark(cell) {
  const side = parseInt(sheet.style.width, 10) / size, box = find(".cell");
  box.hidden = !cell;
  if (cell) {
    box.style.left = `${sheet.offsetLeft + cell[1] * side}px`;
    box.style.top = `${sheet.offsetTop + cell[0] * side}px`;
  }
  [".rows", ".head"].forEach((part, axis) => [...find(`.square ${part}`).children].forEach(
    (element, at) => element.classList.toggle("at", Boolean(cell) && cell[axis] === at)));
  describe(cell);
}

function table() {
  if (!find(".numbers").open) return;
  const top = make("tr"), body = make("tbody"), name = at => make("bdi", data.tokens[at]);
  top.append(make("th", `${state.map.subject} \\ ${state.map.relation}`));
  data.tokens.forEach((_, at) => {
    const column = make("th", "", { scope: "col" });
    column.append(name(at));
    top.append(column);
  });
  data.tokens.forEach((_, at) => {
    const row = make("tr"), first = make("th", "", { scope: "row" });
    first.append(name(at));
    row.append(first, ...Array.from(weights.subarray(at * size, (at + 1) * size), share => make("td", percent(share))));
    body.append(row);
  });
  const table = make("table"), head = make("thead");
  table.append(make("caption", where()), head, body);
  head.append(top);
  find(".numbers .wide").replaceChildren(table);
}

// A small matrix for each head, in a row per layer; for a map without heads one row with a matrix per layer.
function overview(map) {
  const hasHeads = map.heads > 1, columns = hasHeads ? map.heads : map.layers, grid = find(".grid"), buttons = [];
  find(".overview").hidden = map.layers * map.heads === 1;
  find(".overview h2").textContent = hasHeads ? "All layers and heads" : "All layers";
  grid.style.gridTemplateColumns = `auto repeat(${columns}, minmax(2.6rem, ${columns > 4 ? 4 : 7}rem))`;
  const at = (element, row, column) => {
    element.style.gridArea = `${row + 1} / ${column + 1}`;
    return element;
  };
  const label = (text, row) => at(make("span", text, { className: "layer" }), row, 0);
  grid.replaceChildren(label(hasHeads ? "layer \\ head" : "layer", 0),
    ...Array.from({ length: columns }, (_, column) => at(make("span", column + 1), 0, column + 1)),
    ...Array.from({ length: hasHeads ? map.layers : 0 }, (_, row) => label(row + 1, row + 1)));
  for (let layer = 0; layer < map.layers; layer++) {
    for (let number = 0; number < map.heads; number++) {
      const name = `layer ${layer + 1}${hasHeads ? `, head ${number + 1}` : ""}`;
      const button = at(make("button", "", { type: "button", title: name, ariaLabel: name, onclick: () => {
        [state.layer, state.heads] = [layer, [number]];
        draw();
        const { top } = find(".matrix").getBoundingClientRect();
        if (top < 0 || top > innerHeight / 2) find(".matrix").scrollIntoView({ block: "start" });
      } }), hasHeads ? layer + 1 : 1, (hasHeads ? number : layer) + 1);
      Object.assign(button.dataset, { layer, head: number });
      button.append(make("canvas"));
      buttons.push(button);
    }
  }
  grid.append(...buttons);
  rove(buttons, columns);
}
