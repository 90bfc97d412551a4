const { data, sections, theme } = JSON.parse(document.getElementById("drawings").textContent);
const figures = Object.assign({}, ...Object.values(sections));
const hidden = new Set();  // names of series, in all figures
const legend = [...document.querySelectorAll(".legend button[data-series]")];

function html(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A figure: one of the charts of a topic along one of its axes, with a crosshair that reads the values.
class Drawing {
  constructor(figure) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.charts = figures[figure.dataset.drawing];
    this.chart = this.charts[0];
    [this.axis] = this.chart.axes;  // none: rows, not lines
    this.log = { x: false, y: false };
    if (this.axis) this.listen();
    this.select(this.chart);
  }

  select(chart) {
    this.chart = chart;
    if (this.axis) this.setLog("x", chart.log_x);
    if (chart.log_y) this.setLog("y", true);
    this.draw();
  }

  setLog(axis, isLog) {
    this.log[axis] = isLog;
    this.figure.querySelector(`.log[data-axis=${axis}]`).ariaPressed = isLog;
  }

  listen() {
    const { figure, plot } = this;
    this.tip = html("div", { className: "tip", hidden: true, role: "status" });
    figure.append(this.tip);
    plot.addEventListener("pointermove", event => this.showNearest(event.clientX - plot.getBoundingClientRect().left));
    for (const event of ["pointerleave", "blur"]) plot.addEventListener(event, () => this.show(null));
    plot.addEventListener("keydown", event => this.press(event));
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
    const spec = this.spec = this.axis ? this.along() : this.chart.spec;
    const embedded = await vegaEmbed(this.plot, { ...theme, ...spec }, { renderer: "svg", actions: false, defaultStyle: false, logLevel: 1 });
    if (spec !== this.spec) return embedded.finalize();  // another one was selected meanwhile
    this.view?.finalize();
    this.view = embedded.view;
    if (this.axis) this.describe();
    this.update();
  }

  // The spec of a line chart along the selected axis.
  along() {
    const { chart, axis } = this, spec = structuredClone(chart.spec), { transform } = spec;
    spec.data = data[chart.data];
    transform[0].calculate = `datum[${JSON.stringify(axis.x)}]`;
    spec.encoding.x.title = axis.lines;
    for (const name of ["x", "y"].filter(name => this.log[name])) {  // 0 and below have no logarithm
      transform.push({ filter: `!isValid(datum.${name}) || datum.${name} > 0` });
      const scales = [spec, ...spec.layer].map(({ encoding }) => encoding[name]?.scale).filter(Boolean);
      for (const scale of scales) Object.assign(scale, { type: "log", zero: undefined });
    }
    if (this.log.y) transform.push({ joinaggregate: [{ op: "min", field: "y", as: "least" }] },
      { calculate: "isValid(datum.low) && datum.low <= 0 ? datum.least : datum.low", as: "low" });
    return spec;
  }

  describe() {
    const { chart, axis, figure, plot } = this, title = `${chart.title} by ${axis.title}`;
    figure.querySelector(".log[data-axis=x]").hidden = chart.classes;
    figure.querySelector(".selection").textContent = title;
    figure.querySelector(".note").textContent = chart.bounds;
    for (const link of figure.querySelectorAll(".files a")) {
      link.href = `figures/${axis.files}.${link.textContent.trim().toLowerCase()}`;
    }
    plot.ariaLabel = `${title}; arrow keys read the values`;
  }

  update() {
    this.view.signal("hidden", [...hidden]).run();
    if (!this.axis) return;
    const { chart, axis } = this, scale = this.view.scale("x");
    this.place = x => scale(x) + (scale.bandwidth ? scale.bandwidth() / 2 : 0);
    const read = text => text ? Number(text) : null;  // of the CSV
    this.points = this.view.data("points").map(row => ({
      name: row.series, x: chart.classes ? row[axis.x] : read(row[axis.x]), y: read(row[chart.y]),
      bounds: [["min", "max"], ["low", "high"]].map(ends => ends.map(end => read(row[`${chart.y}_${end}`])))
        .find(([low]) => low !== null),
    })).filter(({ name, x, y }) => !hidden.has(name) && y !== null && (!this.log.y || y > 0)
      && (!this.log.x || x === null || x > 0));
    this.stops = [...new Set(this.points.map(point => point.x))].filter(x => x !== null)
      .sort((a, b) => this.place(a) - this.place(b));
    this.show(null);
  }

  showNearest(pixel) {
    const gap = stop => Math.abs(this.place(stop) + this.view.origin()[0] - pixel);
    if (this.stops.length) this.show(this.stops.reduce((best, stop) => gap(stop) < gap(best) ? stop : best));
  }

  show(stop) {
    this.tip.hidden = stop === null;
    this.stop = stop;
    this.view.signal("at", stop).run();
    if (stop === null) return;
    const { axis, chart, figure, plot, tip } = this, x = this.place(stop);
    const write = (value, digits) => this.view.locale().format(Math.abs(value) >= 1e6 ? ".4~s" : `.${digits}~r`)(value);
    const precise = value => write(value, 5);
    const rows = this.points.filter(point => point.x === null || Math.abs(this.place(point.x) - x) < 4);
    const cells = ({ name, y, bounds }) => [
      legend.find(button => button.dataset.series === name).querySelector("svg").cloneNode(true),
      name, precise(y), bounds ? bounds.map(precise).join(" to ") : ""];
    tip.replaceChildren(html("strong", {}, `${axis.title}: ${chart.classes ? stop : write(stop, 7)}`),
      html("table", {}, html("tbody", {}, ...rows.sort((a, b) => b.y - a.y).map(
        row => html("tr", {}, ...cells(row).map(cell => html("td", {}, cell)))))));
    const left = x + this.view.origin()[0] + 16, isWide = left + tip.offsetWidth > figure.clientWidth;
    tip.style.left = `${Math.max(0, isWide ? left - 32 - tip.offsetWidth : left)}px`;
    tip.style.top = `${plot.offsetTop + this.view.origin()[1]}px`;
  }

  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], last = this.stops.length - 1;
    if (event.key === "Escape") this.show(null);
    if (!step || last < 0) return;
    event.preventDefault();
    const now = this.stops.indexOf(this.stop);
    this.show(this.stops[now < 0 ? (step > 0 ? 0 : last) : Math.max(0, Math.min(last, now + step))]);
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
