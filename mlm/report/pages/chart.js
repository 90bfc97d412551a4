const TOPICS = JSON.parse(document.getElementById("data").textContent);
const DASHES = JSON.parse(document.getElementById("dashes").textContent);
const MARGIN = { top: 28, right: 16, bottom: 46, left: 58 };
const hidden = new Set();  // names of series, shared by all figures
const views = [];

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function around(corners, radius, turn = 0, inner = 1) {
  const count = inner === 1 ? corners : 2 * corners;
  return [...Array(count).keys()].map(i => {
    const angle = 2 * Math.PI * (i / count + turn) - Math.PI / 2, r = radius * (i % 2 && inner !== 1 ? inner : 1);
    return [r * Math.cos(angle), r * Math.sin(angle)];
  });
}

function plus(turn) {
  const wide = 4.8, thin = 1.7;
  const corners = [[-thin, -wide], [thin, -wide], [thin, -thin], [wide, -thin], [wide, thin], [thin, thin],
    [thin, wide], [-thin, wide], [-thin, thin], [-wide, thin], [-wide, -thin], [-thin, -thin]];
  const c = Math.cos(turn), s = Math.sin(turn);
  return corners.map(([x, y]) => [c * x - s * y, s * x + c * y]);
}

// In the order of palette.MARKERS.
const MARKERS = [around(24, 4), around(4, 5, 1 / 8), around(3, 5.2), around(4, 5), around(3, 5.2, 1 / 2), plus(0),
  plus(Math.PI / 4), around(3, 5.2, -1 / 4), around(3, 5.2, 1 / 4), around(5, 4.8), around(6, 4.8),
  around(5, 5.6, 0, 0.45)].map(points => "M" + points.map(p => p.map(v => v.toFixed(2)).join(" ")).join("L") + "Z");

const look = one => one.reference ? "reference" : `s${one.color}`;
const dashes = one => one.reference ? (one.color ? "8 4" : "1.5 2.5") : DASHES[one.dashes].map(d => 2 * d).join(" ");

function mark(one, x, y) {
  const transform = `translate(${x.toFixed(1)} ${y.toFixed(1)})`;
  return svg("path", { d: MARKERS[one.marker], class: "mark", transform });
}

function swatch(one) {
  const picture = svg("svg", { width: 34, height: 14, class: look(one), "aria-hidden": "true" },
    svg("path", { d: "M0 7H34", class: "line", "stroke-dasharray": dashes(one) }));
  if (!one.reference) picture.append(mark(one, 17, 7));
  return picture;
}

class View {
  constructor(figure) {
    this.figure = figure;
    this.charts = TOPICS[figure.dataset.topic];
    this.chart = this.charts[0];
    this.axis = 0;
    this.log = { x: false, y: false };
    this.plot = figure.querySelector(".plot");
    this.tip = html("div", { className: "tip", hidden: true });
    this.tip.setAttribute("role", "status");
    figure.append(this.tip);
    this.controls();
    new ResizeObserver(() => {
      if (Math.abs(this.figure.clientWidth - this.drawnFor) > 1) this.draw();
    }).observe(figure);
    this.draw();
  }

  controls() {
    const chart = this.figure.querySelector(".chart-select");
    if (chart) chart.addEventListener("change", () => {
      this.chart = this.charts[chart.value];
      this.axis = Math.min(this.axis, this.chart.axes.length - 1);
      this.draw();
    });
    const axis = this.figure.querySelector(".axis-select");
    if (axis) axis.addEventListener("change", () => {
      this.axis = Number(axis.value);
      this.draw();
    });
    for (const button of this.figure.querySelectorAll(".log")) button.addEventListener("click", () => {
      this.log[button.dataset.axis] = !this.log[button.dataset.axis];
      button.setAttribute("aria-pressed", this.log[button.dataset.axis]);
      this.draw();
    });
  }

  draw(width = this.figure.clientWidth) {
    this.drawnFor = this.figure.clientWidth;
    if (!width) return;  // before the page's layout
    const { chart, figure } = this;
    this.x = chart.axes[this.axis].x;
    this.classes = typeof chart.series[0].x[0][0] === "string" ? chart.series[0].x[0] : null;
    figure.querySelector(".log[data-axis=x]").hidden = Boolean(this.classes);
    figure.querySelector(".selection").textContent = `${chart.y} by ${this.x}`;
    figure.querySelector(".note").textContent = chart.series.some(one => one.bounds.some(Boolean))
      ? `${chart.band ? "Band" : "Bars"}: ${chart.bounds}.` : "";
    figure.querySelector("figcaption .files").replaceChildren(...["png", "svg", "csv"].flatMap((ending, i) =>
      [i ? " · " : "", html("a", { href: `figures/${chart.axes[this.axis].files}.${ending}`, textContent: ending.toUpperCase() })]));
    const legend = this.legend(), beside = figure === figure.parentNode.firstElementChild && width > 650;
    this.plot.classList.toggle("beside", beside);
    this.hide();
    this.plot.replaceChildren(legend);
    this.axes(beside ? width - legend.offsetWidth - 16 : width);
    this.plot.replaceChildren(this.drawing, legend);
  }

  legend() {
    const last = one => one.y[one.y.length - 1];
    const buttons = [...this.chart.series].sort((a, b) => last(b) - last(a)).map(one => {
      const button = html("button", { type: "button" }, swatch(one), one.name);
      button.setAttribute("aria-pressed", !hidden.has(one.name));
      button.addEventListener("click", () => {
        if (!hidden.delete(one.name)) hidden.add(one.name);
        views.forEach(view => view.draw());
        [...this.plot.querySelectorAll(".legend button")].find(b => b.textContent === one.name).focus();
      });
      return button;
    });
    const every = html("button", { type: "button", className: "all", textContent: "all / none" });
    every.addEventListener("click", () => {
      const names = this.chart.series.map(one => one.name), some = names.some(one => hidden.has(one));
      names.forEach(one => some ? hidden.delete(one) : hidden.add(one));
      views.forEach(view => view.draw());
      this.plot.querySelector(".all").focus();
    });
    const group = html("div", { className: "legend" }, ...buttons, every);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Show or hide series");
    return group;
  }

  axes(width) {
    const { chart, classes } = this, height = Math.max(260, Math.min(430, 0.5 * width));
    const seen = chart.series.filter(one => !hidden.has(one.name)), all = chart.series;
    const ys = (seen.length ? seen : all).flatMap(one => [...one.y, ...one.bounds.flatMap(bound => bound || [])]);
    let up = scale(ys, this.log.y ? LOG : EVEN, 0.04);
    if (chart.share && !this.log.y) up = within(up, -0.02, 1.02);
    this.place = (one, i) => classes ? classes.indexOf(one.x[0][i]) : one.x[this.axis][i];
    const across = classes ? scale([-0.4, classes.length - 0.6], EVEN, 1e-9) : scale(
      all.flatMap(one => one.x.length ? one.x[this.axis] : []), this.log.x ? LOG : EVEN, chart.band ? 0.02 : 0.04);
    const inner = [MARGIN.left, width - MARGIN.right, MARGIN.top, height - MARGIN.bottom];
    this.atX = x => inner[0] + (inner[1] - inner[0]) * across.at(x);
    this.atY = y => inner[3] - (inner[3] - inner[2]) * up.at(y);
    Object.assign(this, { seen, inner, width });
    this.stops = [...new Set(seen.filter(one => one.x.length).flatMap(one => one.y.map((_, i) => this.place(one, i))))]
      .filter(stop => !isNaN(this.atX(stop))).sort((a, b) => a - b);

    const clip = `clip-${views.indexOf(this)}-${chart.name}`;
    const drawing = svg("svg", { class: "axes", viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0,
      role: "img", "aria-label": `${chart.y} by ${this.x}; arrow keys read the values` });
    drawing.append(svg("clipPath", { id: clip }, svg("rect",
      { x: inner[0], y: inner[2] - 6, width: inner[1] - inner[0], height: inner[3] - inner[2] + 6 })));
    for (const { value, name } of ticks(up, Math.max(3, height / 45))) {
      const y = this.atY(value);
      drawing.append(svg("path", { d: `M${inner[0]} ${y}H${inner[1]}`, class: "grid" }),
        svg("text", { x: inner[0] - 8, y: y + 4, "text-anchor": "end", class: "y" }, name));
    }
    for (const { value, name } of classes ? classes.map((name, value) => ({ value, name }))
      : ticks(across, Math.max(3, width / 90))) {
      const x = this.atX(value);
      drawing.append(svg("path", { d: `M${x} ${inner[3]}v5`, class: "axis" }),
        svg("text", { x, y: inner[3] + 18, "text-anchor": "middle", class: "x" }, name));
    }
    drawing.append(svg("path", { d: `M${inner[0]} ${inner[3]}H${inner[1]}`, class: "axis" }),
      svg("text", { x: (inner[0] + inner[1]) / 2, y: height - 8, "text-anchor": "middle", class: "soft" }, this.x),
      svg("text", { x: 4, y: 12, class: "soft" }, chart.y));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    for (const one of seen) inside.append(this.line(one));
    this.cross = svg("g", { class: "crosshair" });
    drawing.append(inside, this.cross);
    drawing.addEventListener("pointermove", event => {
      const box = drawing.getBoundingClientRect();
      this.show(this.nearest((event.clientX - box.left) * width / box.width));
    });
    drawing.addEventListener("pointerleave", () => this.hide());
    drawing.addEventListener("blur", () => this.hide());
    drawing.addEventListener("keydown", event => this.key(event));
    this.drawing = drawing;
  }

  // Offsets series with bars, so that no bar covers another.
  shift(one) {
    if (this.chart.band || one.reference) return 0;
    const models = this.chart.series.filter(other => !other.reference);
    const room = this.classes ? 0.4 * (this.atX(1) - this.atX(0)) : 0.03 * (this.inner[1] - this.inner[0]);
    return room * ((models.indexOf(one) + 0.5) / models.length - 0.5);
  }

  line(one) {
    const group = svg("g", { class: `series ${look(one)}`, "data-name": one.name });
    const path = points => "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    if (!one.x.length) {  // a constant
      const y = this.atY(one.y[0]);
      if (!isNaN(y)) group.append(svg("path", { class: "line", "stroke-dasharray": dashes(one),
        d: path([[this.inner[0], y], [this.inner[1], y]]) }));
      return group;
    }
    const bottom = value => isNaN(this.atY(value)) ? this.inner[3] : this.atY(value);
    const points = one.y.map((value, i) => ({ x: this.atX(this.place(one, i)) + this.shift(one), y: this.atY(value),
      ends: one.bounds[i] && one.bounds[i].map(bottom) })).filter(({ x, y }) => !isNaN(x) && !isNaN(y));
    if (!points.length) return group;
    if (points.every(({ ends }) => ends) && this.chart.band) {
      const upper = points.map(({ x, ends }) => [x, ends[1]]).reverse();
      group.append(svg("path", { class: "band", d: path([...points.map(({ x, ends }) => [x, ends[0]]), ...upper]) + "Z" }));
    } else if (!this.chart.band) {
      for (const { x, ends } of points) {
        if (ends) group.append(svg("path", { class: "bar", d: path([[x, ends[0]], [x, ends[1]]]) }));
      }
    }
    group.append(svg("path", { d: path(points.map(({ x, y }) => [x, y])), class: "line",
      "stroke-dasharray": dashes(one) }));
    const every = this.chart.band ? Math.max(1, Math.floor(points.length / 8)) : 1;
    if (!one.reference) points.forEach(({ x, y }, i) => {
      if (i % every === 0 || i === points.length - 1) group.append(mark(one, x, y));
    });
    return group;
  }

  nearest(pixel) {
    return this.stops.reduce((best, stop) =>
      best === null || Math.abs(this.atX(stop) - pixel) < Math.abs(this.atX(best) - pixel) ? stop : best, null);
  }

  show(stop) {
    if (stop === null) return;
    this.stop = stop;
    const { inner, width } = this, x = this.atX(stop);
    const rows = this.seen.map(one => {
      if (!one.x.length) return { one, i: 0, at: x, near: true };
      const gaps = one.y.map((_, i) => Math.abs(this.atX(this.place(one, i)) - x));
      const i = gaps.indexOf(Math.min(...gaps.filter(gap => !isNaN(gap))));
      return { one, i, at: this.atX(this.place(one, i)) + this.shift(one), near: gaps[i] < 4 };
    }).filter(({ one, i, near }) => near && !isNaN(this.atY(one.y[i]))).sort((a, b) => b.one.y[b.i] - a.one.y[a.i]);
    this.cross.replaceChildren(svg("path", { d: `M${x} ${inner[2]}V${inner[3]}`, class: "cross" }),
      ...rows.map(({ one, i, at }) => svg("g", { class: look(one) }, mark(one, at, this.atY(one.y[i])))));
    const heading = this.classes ? this.classes[stop] : placeName(stop);
    const cells = ({ one, i }) => [swatch(one), one.name, precise(one.y[i]),
      one.bounds[i] ? one.bounds[i].map(precise).join(" to ") : ""];
    this.tip.replaceChildren(html("strong", {}, `${this.x}: ${heading}`), html("table", {}, html("tbody", {},
      ...rows.map(row => html("tr", {}, ...cells(row).map(cell => html("td", {}, cell)))))));
    this.tip.hidden = false;
    const box = this.drawing.getBoundingClientRect(), frame = this.figure.getBoundingClientRect();
    const px = box.left - frame.left + x * box.width / width;
    const leftSide = px + 16 + this.tip.offsetWidth > frame.width;
    this.tip.style.left = `${Math.max(0, leftSide ? px - 16 - this.tip.offsetWidth : px + 16)}px`;
    this.tip.style.top = `${box.top - frame.top + inner[2]}px`;
  }

  hide() {
    this.stop = null;
    this.tip.hidden = true;
    if (this.cross) this.cross.replaceChildren();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (!step || !this.stops.length) return;
    event.preventDefault();
    const now = this.stops.indexOf(this.stop), last = this.stops.length - 1;
    this.show(this.stops[now < 0 ? (step > 0 ? 0 : last) : Math.max(0, Math.min(last, now + step))]);
  }
}
