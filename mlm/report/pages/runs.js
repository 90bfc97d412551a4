// The table of runs: filtered, sorted, with chosen columns; two ticked runs are compared.
const showRuns = (() => {
  const columns = JSON.parse(document.getElementById("run-columns").textContent)
    .map(([name, title, kind, values, format, common]) => ({ name, title, kind, values, format, common }));
  const isMissing = value => [null, "", "—"].includes(value);
  for (const column of columns) {
    column.isNumeric = Boolean(column.format) || column.values.every(value => isMissing(value) || !isNaN(value));
    column.look = column.kind + (column.isNumeric ? " number" : "");
  }
  const section = document.getElementById("runs"), find = selector => section.querySelector(selector);
  const [names, groups] = [columns[0].values, columns[1].values], ticked = [];
  const make = (tag, text = "", properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(text, ...children);
    return element;
  };
  const config = columns.filter(({ kind }) => kind === "config");
  const first = [...config.filter(({ name }) => name !== "seed").slice(0, 6), ...config.filter(({ name }) => name === "seed")];
  const shown = new Set([columns[0], ...columns.filter(({ kind }) => kind === "score"), ...first,
    ...columns.filter(({ name }) => ["timed_seconds", "tokens_per_second"].includes(name))]);
  let order = names.map((_, run) => run), sorted = null;

  function quantity(value) {
    const power = value ? Math.max(0, Math.floor(Math.log10(Number(value.toPrecision(3))) / 3)) : 0;
    return Number((value / 1000 ** power).toPrecision(3)) + ["", "K", "M", "G", "T", "P", "E", "Z"][power];
  }
  function write({ format }, value) {
    if (value === null || value === undefined || !format) return value ?? "";
    if (format === "quantity") return quantity(value);
    if (format === "percent") return (100 * value).toFixed(1);
    const digits = Number(/\.(\d)/.exec(format)?.[1] || 0);
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  // A word of the filter as a test of a run; one that is no comparison is part of the run's name or of a text.
  function parse(word) {
    const [, name, sign, value] = /^([^=<>]+)([=<>])(.+)$/.exec(word) || [];
    const found = name && (columns.find(column => column.name === name || column.title === name)
      || columns.find(column => column.name.endsWith(name)));
    if (!found) return run => names[run].includes(word) || config.some(({ values }) => values[run] === word);
    const tests = { "=": cell => String(cell) === value || cell === Number(value), "<": cell => cell < Number(value),
      ">": cell => cell > Number(value) };
    return run => found.values[run] !== null && found.values[run] !== "" && tests[sign](found.format
      || sign === "=" ? found.values[run] : Number(found.values[run]));
  }
  let only = null;  // the group whose curve was clicked

  const visible = () => columns.filter(column => shown.has(column));

  function select() {
    const tests = find(".filter").value.split(/\s+/).filter(Boolean).map(parse);
    return order.filter(run => (only === null || groups[run] === only) && tests.every(test => test(run)));
  }

  function draw() {
    const runs = select(), head = make("tr"), body = make("tbody");
    find(".count").value = `${runs.length} of ${names.length} runs${only === null ? "" : ` (${only})`}`;
    head.append(make("th", "", { scope: "col" }, make("span", "compare", { className: "hidden" })));
    for (const column of visible()) {
      const text = column.title.replace(/[._]/g, "$&\u200b");
      const th = make("th", "", { scope: "col", className: column.look },
        make("button", text, { type: "button", onclick: () => sort(column) }));
      if (sorted?.column === column) th.ariaSort = sorted.down ? "descending" : "ascending";
      head.append(th);
    }
    for (const run of runs) {
      const box = make("input", "", { type: "checkbox", checked: ticked.includes(run), onchange: () => tick(run) });
      box.ariaLabel = `compare ${names[run]}`;
      const row = make("tr", "", {}, make("td", "", {}, box));
      for (const column of visible()) {
        const value = column.values[run], { common, look, name } = column;
        const isOdd = common !== null && name !== "seed" && value !== common && value !== "—";
        row.append(make(column === columns[0] ? "th" : "td", write(column, value),
          { className: look + (isOdd ? " odd" : ""), ...(column === columns[0] && { scope: "row" }) }));
      }
      body.append(row);
    }
    const focused = document.activeElement?.textContent;
    find(".runs").replaceChildren(make("thead", "", {}, head), body);
    [...find(".runs").querySelectorAll("th button")].find(({ textContent }) => textContent === focused)?.focus();
  }

  function sort(column) {
    const down = sorted?.column === column && !sorted.down, { values, isNumeric } = column;
    sorted = { column, down };
    order.sort((a, b) => isMissing(values[a]) - isMissing(values[b]) || (down ? -1 : 1) * (isNumeric ? values[a] - values[b]
      : String(values[a]).localeCompare(values[b], "en", { numeric: true })) || a - b);
    draw();
  }

  function tick(run) {
    ticked.includes(run) ? ticked.splice(ticked.indexOf(run), 1) : ticked.push(run);
    if (ticked.length > 2) ticked.shift();
    for (const box of section.querySelectorAll(".runs input")) {
      box.checked = ticked.some(other => box.ariaLabel === `compare ${names[other]}`);
    }
    const [a, b] = ticked, place = find(".difference");
    if (b === undefined) {
      place.replaceChildren();
      return;
    }
    const differing = columns.slice(1).filter(({ kind, name, values }) =>
      values[a] !== values[b] && ["config", "score", "provenance"].includes(kind) && !/\(UTC\)$/.test(name));
    const cell = (column, at) => make("td", write(column, column.values[at]), { className: column.look });
    place.replaceChildren(make("table", make("caption", `${differing.length} differences`), {},
      make("thead", "", {}, make("tr", "", {}, ...["", names[a], names[b]].map(text => make("th", text, { scope: "col" })))),
      make("tbody", "", {}, ...differing.map(column =>
        make("tr", make("th", column.title, { scope: "row" }), {}, cell(column, a), cell(column, b))))));
  }

  const kinds = { score: "Scores", config: "Config fields that differ", cost: "Costs", provenance: "Provenance and times" };
  for (const [kind, title] of Object.entries(kinds)) {
    const own = columns.filter(column => column.kind === kind);
    if (!own.length) continue;
    find(".choose").append(make("fieldset", make("legend", title), {}, ...own.map(column => make("label", "", {},
      make("input", "", { type: "checkbox", checked: shown.has(column), onchange: () => {
        shown.has(column) ? shown.delete(column) : shown.add(column);
        draw();
      } }), column.title))));
  }
  find(".filter").addEventListener("input", () => {
    only = null;
    draw();
  });
  find(".save").addEventListener("click", () => {  // what the table shows, with all digits
    const quote = text => /[",\n]/.test(text) ? `"${String(text).replace(/"/g, '""')}"` : text ?? "";
    const lines = [visible().map(({ name }) => name), ...select().map(run => visible().map(({ values }) => values[run]))];
    const blob = new Blob([`${lines.map(line => line.map(quote).join(",")).join("\n")}\n`], { type: "text/csv" });
    make("a", "", { href: URL.createObjectURL(blob), download: "runs.csv" }).click();
  });
  draw();
  return series => {  // those of a curve
    if (!groups.includes(series)) return;
    only = series;
    find(".filter").value = "";
    draw();
    section.scrollIntoView({ block: "start" });
    find(".filter").focus({ preventScroll: true });
  };
})();
