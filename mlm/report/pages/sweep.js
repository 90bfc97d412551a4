"use strict";
{
  const TOPICS = JSON.parse(document.getElementById("data").textContent);
  const DASHES = JSON.parse(document.getElementById("dashes").textContent);
  const MARGIN = { top: 28, right: 16, bottom: 46, left: 58 };
  const hidden = new Set();  // names of series, in all figures at once
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

  const look = one => one.reference ? "reference" : `s${one.colour}`;
  const dashes = one => one.reference ? (one.colour ? "8 4" : "1.5 2.5") : DASHES[one.dashes].map(d => 2 * d).join(" ");

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

  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return { values: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  const large = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const precise = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
  const tickName = (value, digits) => Math.abs(value) >= 10000 ? large.format(value) : value.toFixed(digits);

  class View {
    constructor(figure) {
      this.figure = figure;
      this.charts = TOPICS[figure.dataset.topic];
      this.chart = this.charts[0];
      this.plot = figure.querySelector(".plot");
      this.tip = html("div", { className: "tip", hidden: true });
      this.tip.setAttribute("role", "status");
      figure.append(this.tip);
      const select = figure.querySelector("select");
      if (select) select.addEventListener("change", () => {
        this.chart = this.charts[select.value];
        this.draw();
      });
      new ResizeObserver(() => {
        if (Math.abs(this.figure.clientWidth - this.drawnFor) > 1) this.draw();
      }).observe(figure);
      this.draw();
    }

    draw(width = this.figure.clientWidth) {
      this.drawnFor = this.figure.clientWidth;
      const { chart, figure } = this;
      figure.querySelector(".chosen").textContent = `${chart.y} by ${chart.x}`;
      figure.querySelector(".note").textContent = chart.series.some(one => one.bounds.some(Boolean))
        ? `${chart.band ? "Band" : "Bars"}: ${chart.bounds}.` : "";
      figure.querySelector("figcaption .files").replaceChildren(...["png", "svg", "csv"].flatMap((ending, i) =>
        [i ? " · " : "", html("a", { href: `figures/${chart.name}.${ending}`, textContent: ending.toUpperCase() })]));
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
      const { chart } = this, height = Math.max(260, Math.min(430, 0.5 * width));
      const seen = chart.series.filter(one => !hidden.has(one.name)), all = chart.series;
      const classes = typeof all[0].x[0] === "string" ? all[0].x : null;
      const ys = (seen.length ? seen : all).flatMap(one => [...one.y, ...one.bounds.flatMap(bound => bound || [])]);
      let low = Math.min(...ys), high = Math.max(...ys);
      const room = 0.04 * (high - low) || 0.1 * Math.abs(high) || 1;
      [low, high] = [low - room, high + room];
      if (chart.share) [low, high] = [Math.max(low, -0.02), Math.min(high, 1.02)];
      const xs = classes ? [-0.4, classes.length - 0.6] : all.flatMap(one => one.x);
      const left = Math.min(...xs), span = Math.max(...xs) - left || 1;
      const pad = classes ? 0 : (chart.band ? 0.02 : 0.04) * span;
      const inner = [MARGIN.left, width - MARGIN.right, MARGIN.top, height - MARGIN.bottom];
      this.atX = x => inner[0] + (inner[1] - inner[0]) * (x - left + pad) / (span + 2 * pad);
      this.atY = y => inner[3] - (inner[3] - inner[2]) * (y - low) / (high - low);
      this.place = (one, i) => classes ? classes.indexOf(one.x[i]) : one.x[i];
      Object.assign(this, { seen, classes, inner, width });
      this.stops = [...new Set(seen.flatMap(one => one.x.map((_, i) => this.place(one, i))))].sort((a, b) => a - b);

      const clip = `clip-${views.indexOf(this)}-${chart.name}`;
      const drawing = svg("svg", { class: "axes", viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0,
        role: "img", "aria-label": `${chart.y} by ${chart.x}; arrow keys read the values` });
      drawing.append(svg("clipPath", { id: clip }, svg("rect",
        { x: inner[0], y: inner[2] - 6, width: inner[1] - inner[0], height: inner[3] - inner[2] + 6 })));
      const steps = ticks(low, high, Math.max(3, height / 45));
      for (const value of steps.values) {
        const y = this.atY(value);
        drawing.append(svg("path", { d: `M${inner[0]} ${y}H${inner[1]}`, class: "grid" }),
          svg("text", { x: inner[0] - 8, y: y + 4, "text-anchor": "end" }, tickName(value, steps.digits)));
      }
      const across = classes ? { values: classes.map((_, i) => i) } : ticks(left, left + span, Math.max(3, width / 90));
      for (const value of across.values) {
        const x = this.atX(value);
        drawing.append(svg("path", { d: `M${x} ${inner[3]}v5`, class: "axis" }),
          svg("text", { x, y: inner[3] + 18, "text-anchor": "middle" },
          classes ? classes[value] : tickName(value, across.digits)));
      }
      drawing.append(svg("path", { d: `M${inner[0]} ${inner[3]}H${inner[1]}`, class: "axis" }),
        svg("text", { x: (inner[0] + inner[1]) / 2, y: height - 8, "text-anchor": "middle", class: "soft" }, chart.x),
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

    // Series with bars stand side by side, so that no bar covers another.
    shift(one) {
      if (this.chart.band || one.reference) return 0;
      const models = this.chart.series.filter(other => !other.reference);
      const room = this.classes ? 0.4 * (this.atX(1) - this.atX(0)) : 0.03 * (this.inner[1] - this.inner[0]);
      return room * ((models.indexOf(one) + 0.5) / models.length - 0.5);
    }

    line(one) {
      const at = one.x.map((_, i) => this.atX(this.place(one, i)) + this.shift(one));
      const group = svg("g", { class: `series ${look(one)}`, "data-name": one.name });
      const path = (xs, ys) => "M" + xs.map((x, i) => `${x.toFixed(1)} ${this.atY(ys[i]).toFixed(1)}`).join("L");
      if (one.bounds.every(Boolean) && this.chart.band) {
        const back = [...at].reverse(), upper = [...one.bounds].reverse().map(bound => bound[1]);
        group.append(svg("path", { class: "band",
          d: path(at, one.bounds.map(bound => bound[0])) + path(back, upper).replace("M", "L") + "Z" }));
      } else if (!this.chart.band) {
        one.bounds.forEach((bound, i) => {
          if (bound) group.append(svg("path", { class: "bar", d: path([at[i], at[i]], bound) }));
        });
      }
      group.append(svg("path", { d: path(at, one.y), class: "line", "stroke-dasharray": dashes(one) }));
      const every = this.chart.band ? Math.max(1, Math.floor(at.length / 8)) : 1;
      if (!one.reference) at.forEach((x, i) => {
        if (i % every === 0 || i === at.length - 1) group.append(mark(one, x, this.atY(one.y[i])));
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
        const gaps = one.x.map((_, i) => Math.abs(this.atX(this.place(one, i)) - x));
        const i = gaps.indexOf(Math.min(...gaps));
        return { one, i, value: one.y[i], near: gaps[i] < 4 };
      }).filter(row => row.near).sort((a, b) => b.value - a.value);
      this.cross.replaceChildren(svg("path", { d: `M${x} ${inner[2]}V${inner[3]}`, class: "cross" }), ...rows.map(row =>
        svg("g", { class: look(row.one) }, mark(row.one, this.atX(this.place(row.one, row.i)) + this.shift(row.one),
          this.atY(row.value)))));
      const heading = this.classes ? this.classes[stop] : new Intl.NumberFormat("en").format(stop);
      const cells = ({ one, i, value }) => [swatch(one), one.name, precise.format(value),
        one.bounds[i] ? one.bounds[i].map(precise.format).join(" to ") : ""];
      this.tip.replaceChildren(html("strong", {}, `${this.chart.x}: ${heading}`), html("table", {}, html("tbody", {},
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

  for (const figure of document.querySelectorAll("figure[data-topic]")) views.push(new View(figure));
  const PAPER = 940;  // CSS pixels between the margins of a landscape page
  addEventListener("beforeprint", () => {
    views.forEach(view => view.draw(PAPER));
    for (const wide of document.querySelectorAll(".wide > table")) {
      wide.style.zoom = Math.min(1, PAPER / wide.offsetWidth);
    }
  });
  addEventListener("afterprint", () => {
    views.forEach(view => view.draw());
    for (const wide of document.querySelectorAll(".wide > table")) wide.style.zoom = "";
  });

  const table = document.getElementById("runs");
  for (const button of table ? table.querySelectorAll("thead button") : []) {
    button.addEventListener("click", () => {
      const head = button.parentNode, column = head.cellIndex, body = table.tBodies[0];
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[column].dataset.key;
      const rows = [...body.rows], numeric = rows.every(row => key(row) === "" || !isNaN(key(row)));
      rows.sort((a, b) => {
        const [p, q] = [key(a), key(b)];
        if (p === "" || q === "") return (p === "") - (q === "");  // what is missing stays last
        return (down ? -1 : 1) * (numeric ? p - q : p.localeCompare(q, "en", { numeric: true }));
      });
      body.append(...rows);
    });
  }
}
