// The scores of the headline's rows as dots with their intervals; references that are not far away are lines through all.
{
  const cells = [...document.querySelectorAll(".headline td.drawn")].map(cell => {
    const [mean, ...bounds] = cell.dataset.value.split(" ").map(text => /\d/.test(text) ? Number(text) : null);
    return { cell, mean, bounds: bounds.filter(bound => bound !== null), isModel: "model" in cell.dataset, isLine: "line" in cell.dataset };
  });
  const [least, most] = document.querySelector(".headline th.drawn")?.dataset.limits.split(" ")
    .map(text => Number(text.replace("inf", "Infinity"))) || [];
  const models = cells.filter(({ isModel, mean }) => isModel && mean !== null);
  const ends = models.flatMap(({ mean, bounds }) =>
    [mean, ...bounds.map(bound => Math.min(Math.max(bound, Math.min(least, mean)), Math.max(most, mean)))]);
  const margin = 1.2 * (Math.max(...ends) - Math.min(...ends));
  const drawn = cells.filter(({ mean }) => mean !== null && mean >= Math.min(...ends) - margin && mean <= Math.max(...ends) + margin);
  const all = [...ends, ...drawn.map(({ mean }) => mean)], [low, high] = [Math.min(...all), Math.max(...all)];
  const place = value => `${4 + 92 * (Math.min(Math.max(value, low), high) - low) / (high - low || 1)}%`;
  const make = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const name = cell => cell.parentNode.cells[0].textContent;
  const lines = drawn.filter(({ isLine }) => isLine);
  for (const { cell, mean, bounds, isModel } of models.length > 1 ? cells : []) {
    const svg = make("svg", { "aria-hidden": true });
    svg.append(...lines.map(line => make("line", { class: "at", x1: place(line.mean), x2: place(line.mean), y2: "100%" })));
    if (isModel && bounds.length) svg.append(make("line", { x1: place(bounds[0]), x2: place(bounds[1]), y1: "50%", y2: "50%" }));
    if (isModel && mean !== null) svg.append(make("circle", { cx: place(mean), cy: "50%", r: 4 }));
    if (lines.some(line => line.cell === cell)) svg.append(make("circle", { class: "at", cx: place(mean), cy: "50%", r: 3 }));
    cell.append(svg);
  }
  if (models.length > 1) {
    document.querySelector(".headline th.drawn").append(lines.length
      ? `dashed: ${[...new Set(lines.map(({ cell }) => name(cell)))].join(", ")}`
      : `${low.toPrecision(3)} to ${high.toPrecision(3)}`);
  }
  if (models.length < 2) for (const cell of document.querySelectorAll(".headline .drawn")) cell.remove();
}
