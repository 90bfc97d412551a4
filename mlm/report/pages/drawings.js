const { data, sections, theme, parts } = JSON.parse(document.getElementById("drawings").textContent);
const figures = Object.assign({}, ...Object.values(sections));
const hidden = new Set();  // names of series, in all figures
const legend = [...document.querySelectorAll(".legend button[data-series]")];

function html(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// The spec of a search: a line for each trial over its values, an axis for each field, the last for the score. Positive
// numbers that span a factor of 20 are placed by their logarithm, and texts in their order; the best score is at the top.
function parallel({ title, better, trials }) {
  const names = [...new Set(trials.flatMap(({ values }) => Object.keys(values)))];
  const score = Object.keys(trials[0].values).at(-1), points = [], ends = [];
  names.push(...names.splice(names.indexOf(score), 1));
  for (const axis of names) {
    const own = trials.map(({ values }) => values[axis]), known = [...new Set(own)].filter(value => value !== undefined);
    const isNumeric = known.every(value => typeof value === "number");
    known.sort(isNumeric ? (a, b) => a - b : undefined);
    const isLog = isNumeric && known[0] > 0 && known.at(-1) >= 20 * known[0];
    const level = value => isLog ? Math.log(value) : isNumeric ? value : known.indexOf(value);
    const [low, high] = [known[0], known.at(-1)].map(level), isTurned = axis === score && better < 0;
    const place = value => Math.abs(isTurned - (level(value) - low) / ((high - low) || 1));
    own.forEach((value, trial) => value === undefined
      || points.push({ axis, trial, series: trials[trial].series, place: place(value) }));
    for (const value of new Set([known[0], known.at(-1)])) {
      ends.push({ axis, place: place(value), text: typeof value === "number" ? String(+value.toPrecision(4)) : String(value) });
    }
  }
  const good = new Map(points.filter(({ axis }) => axis === score).map(({ trial, place }) => [trial, place]));
  for (const point of points) point.good = good.get(point.trial);
  const label = "split(replace(replace(datum.value, '.', '. '), regexp('_', 'g'), ' '), ' ')";
  const axis = { orient: "top", labelAngle: 0, labelExpr: label, labelPadding: 12, domain: false, ticks: false, grid: true };
  return {
    title: { text: title, subtitle: "a line is a trial, the bluer the better its score, which is best at the top" },
    width: "container", height: 260, autosize: { type: "fit-x", contains: "padding" },
    encoding: {
      x: { field: "axis", type: "ordinal", sort: names, scale: { type: "point" }, title: null, axis },
      y: { field: "place", type: "quantitative", scale: { domain: [-.1, 1.15] }, axis: null },
    },
    layer: [
      { data: { values: points }, transform: [{ filter: "indexof(hidden, datum.series) < 0" }],
        mark: { type: "line", color: "var(--heat)", strokeWidth: 2 },
        encoding: { detail: { field: "trial" },
          opacity: { field: "good", type: "quantitative", scale: { domain: [0, 1], range: [.1, 1] }, legend: null } } },
      { data: { values: ends }, encoding: { text: { field: "text" } },
        mark: { type: "text", align: "left", dx: 5, dy: { expr: "10 - 18 * datum.place" }, color: "var(--soft)" } },
    ],
  };
}

// How many characters of all names are the same words, such as the size that the title of a small multiple says.
function sharedStart([first, ...others]) {
  let end = others.length ? first.lastIndexOf("-") + 1 : 0;
  while (end > 0 && !others.every(name => name.startsWith(first.slice(0, end)))) end = end > 1 ? first.lastIndexOf("-", end - 2) + 1 : 0;
  return end;
}

// A figure: one of the charts of a topic along one of its axes, with a crosshair that reads the values, and a plot for
// each of its small multiples.
class Drawing {
  constructor(figure) {
    this.figure = figure;
    this.plots = [...figure.querySelectorAll(".plot")].map(element => ({ element, facet: element.dataset.facet }));
    this.charts = figures[figure.dataset.drawing];
    [this.axis] = this.charts[0].axes;  // none: rows, not lines
    this.log = { x: false, y: false };
    if (this.axis) this.listen();
    this.select(this.charts[0]);
  }

  select(chart) {
    if (this.axis && chart !== this.chart) for (const axis of ["x", "y"]) this.setLog(axis, chart[`log_${axis}`]);
    this.chart = chart;
    this.draw();
  }

  setLog(axis, isLog) {
    this.log[axis] = isLog;
    this.figure.querySelector(`.log[data-axis=${axis}]`).ariaPressed = isLog;
  }

  listen() {
    const { figure } = this;
    this.tip = html("div", { className: "tip", hidden: true, role: "status" });
    figure.append(this.tip);
    for (const plot of this.plots) {
      const { element } = plot;
      element.addEventListener("pointermove",
        event => this.showNearest(plot, event.clientX - element.getBoundingClientRect().left));
      for (const event of ["pointerleave", "blur"]) element.addEventListener(event, () => this.show(plot, null));
      element.addEventListener("keydown", event => this.press(plot, event));
    }
    const [chart, axis] = [".chart-select", ".axis-select"].map(name => figure.querySelector(name));
    for (const select of [chart, axis]) select?.addEventListener("change", () => {
      const selected = this.charts[chart?.value || 0];
      this.axis = selected.axes[axis?.value || 0] || selected.axes[0];
      this.select(selected);
    });
    for (const button of figure.querySelectorAll(".log")) button.addEventListener("click", () => {
      this.setLog(button.dataset.axis, !this.log[button.dataset.axis]);
      this.draw();
    });
  }

  async draw() {
    const drawing = this.drawing = {};
    await Promise.all(this.plots.map(async plot => {
      const spec = this.axis ? this.along(plot) : this.chart.spec || parallel(this.chart);
      const embedded = await vegaEmbed(plot.element, { ...theme, ...spec },
        { renderer: "svg", actions: false, defaultStyle: false, logLevel: 1 });
      if (drawing !== this.drawing) return embedded.finalize();  // another one was selected meanwhile
      plot.view?.finalize();
      plot.view = embedded.view;
      plot.view.addEventListener("click", (event, item) => item?.datum?.series && showRuns(item.datum.series));
    }));
    if (drawing !== this.drawing) return;
    if (this.axis) this.describe();
    this.update();
  }

  // The spec of a line chart along the selected axis.
  along({ element, facet }) {
    const { chart, axis } = this, { title, encoding } = chart.spec, copy = number => structuredClone(parts[number]);
    const [transform, layer] = [chart.spec.transform, chart.spec.layer].map(numbers => numbers.map(copy));
    const spec = { title: { ...title }, encoding: copy(encoding), transform, layer,
      width: "container", height: "container", autosize: { type: "fit", contains: "padding" } };
    const shown = chart.facets[facet], plots = shown ? Object.values(chart.facets) : [spec.encoding.color.scale.domain];
    element.style.minHeight = `${14 * Math.max(...plots.map(names => names.length)) + 140}px`;  // for the most labels
    if (shown) {
      spec.title.subtitle = facet;
      spec.params = theme.params.map(param => param.name === "shown" ? { ...param, value: shown } : param);
    }
    const label = layer.find(layer => layer.mark.type === "text");
    label.mark.limit = element.clientWidth * .35;
    label.transform.push({ calculate: `slice(datum.series, datum.index < 0 ? 0 : ${shown ? sharedStart(shown) : 0})`, as: "label" });
    label.encoding.text.field = "label";
    spec.data = data[chart.data];
    transform[0].calculate = `datum[${JSON.stringify(axis.x)}]`;
    spec.encoding.x.title = axis.lines;
    for (const name of ["x", "y"].filter(name => this.log[name])) {  // 0 and below have no logarithm
      transform.push({ filter: `!isValid(datum.${name}) || datum.${name} > 0` });
      const scales = [spec, ...spec.layer].map(({ encoding }) => encoding[name]?.scale).filter(Boolean);
      for (const scale of scales) Object.assign(scale, { type: "log", zero: undefined });
    }
    if (this.log.y) transform.push({ joinaggregate: [{ op: "min", field: "y", as: "positive" }] },
      { calculate: "isValid(datum.low) && datum.low <= 0 ? datum.positive : datum.low", as: "low" },
      { calculate: "isValid(datum.low) ? min(datum.y, datum.low) : datum.y", as: "lowest" },
      { calculate: "true", as: "is_log" });
    return spec;
  }

  describe() {
    const { chart, axis, figure } = this, title = `${chart.title} by ${axis.title}`;
    figure.querySelector(".log[data-axis=x]").hidden = chart.classes;
    figure.querySelector(".selection").textContent = title;
    figure.querySelector(".note").textContent = chart.bounds;
    for (const link of figure.querySelectorAll(".files a")) {
      link.href = `figures/${axis.files}.${link.textContent.trim().toLowerCase()}`;
    }
    for (const { element, facet } of this.plots) {
      element.ariaLabel = `${title}${facet ? `, ${facet}` : ""}; arrow keys read the values`;
    }
  }

  update() {
    for (const { view } of this.plots) view.signal("hidden", [...hidden]).run();
    if (!this.axis) return;
    const { chart, axis } = this, [{ view }] = this.plots, scale = view.scale("x");
    this.place = x => scale(x) + (scale.bandwidth ? scale.bandwidth() / 2 : 0);
    const read = text => text ? Number(text) : null;  // of the CSV
    const points = view.data("points").map(row => ({
      name: row.series, x: chart.classes ? row[axis.x] : read(row[axis.x]), y: read(row[chart.y]),
      bounds: [["min", "max"], ["low", "high"]].map(ends => ends.map(end => read(row[`${chart.y}_${end}`])))
        .find(([low]) => low !== null),
    })).filter(({ name, x, y }) => !hidden.has(name) && y !== null && (!this.log.y || y > 0)
      && (!this.log.x || x === null || x > 0));
    const inOthers = new Set(Object.values(chart.facets).flat());
    for (const plot of this.plots) {
      const shown = chart.facets[plot.facet] || [];
      plot.points = points.filter(({ name }) => !inOthers.has(name) || shown.includes(name));
      plot.stops = [...new Set(plot.points.map(point => point.x))].filter(x => x !== null)
        .sort((a, b) => this.place(a) - this.place(b));
    }
    this.show(this.plots[0], null);
  }

  showNearest(plot, pixel) {
    if (!plot.stops) return;
    const gap = stop => Math.abs(this.place(stop) + plot.view.origin()[0] - pixel);
    if (plot.stops.length) this.show(plot, plot.stops.reduce((best, stop) => gap(stop) < gap(best) ? stop : best));
  }

  show(plot, stop) {
    this.tip.hidden = stop === null;
    this.stop = stop;
    for (const { view } of this.plots) view?.signal("at", stop).run();  // one crosshair in all small multiples
    if (stop === null) return;
    const { axis, chart, figure, tip } = this, { element, view } = plot, x = this.place(stop);
    const format = (value, form) => view.locale().format(form)(value);
    const precise = value => chart.percent ? format(value, ".1%")
      : format(value, Math.abs(value) >= 1e4 ? ".3~s" : !value || Math.abs(value) >= .01 ? ".3f" : ".2e");
    const rows = plot.points.filter(point => point.x === null || Math.abs(this.place(point.x) - x) < 4);
    const cells = ({ name, y, bounds }) => [
      legend.find(button => button.dataset.series === name).querySelector("svg").cloneNode(true),
      name, precise(y), bounds ? bounds.map(precise).join(" to ") : ""];
    const where = chart.classes ? stop : format(stop, Math.abs(stop) >= 1e6 ? ".4~s" : ".7~r");
    tip.replaceChildren(html("strong", {}, `${axis.title}: ${where}`),
      html("table", {}, html("tbody", {}, ...rows.sort((a, b) => b.y - a.y).map(
        row => html("tr", {}, ...cells(row).map(cell => html("td", {}, cell)))))));
    const left = x + element.offsetLeft + view.origin()[0] + 16, isWide = left + tip.offsetWidth > figure.clientWidth;
    tip.style.left = `${Math.max(0, isWide ? left - 32 - tip.offsetWidth : left)}px`;
    tip.style.top = `${element.offsetTop + view.origin()[1]}px`;
  }

  press(plot, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], last = plot.stops.length - 1;
    if (event.key === "Escape") this.show(plot, null);
    if (!step || last < 0) return;
    event.preventDefault();
    const now = plot.stops.indexOf(this.stop);
    this.show(plot, plot.stops[now < 0 ? (step > 0 ? 0 : last) : Math.max(0, Math.min(last, now + step))]);
  }
}

const all = [...document.querySelectorAll("figure[data-drawing]")].map(figure => new Drawing(figure));

function updateHidden(names, isHidden) {
  names.forEach(name => isHidden ? hidden.add(name) : hidden.delete(name));
  for (const button of legend) button.ariaPressed = !hidden.has(button.dataset.series);
  all.forEach(drawing => drawing.update());
}
for (const button of legend) {
  const { series } = button.dataset;
  button.addEventListener("click", () => updateHidden([series], !hidden.has(series)));
}
document.querySelector(".legend .all")?.addEventListener("click",
  () => updateHidden(legend.map(button => button.dataset.series), !hidden.size));
