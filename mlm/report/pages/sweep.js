// A click on a head sorts the rows of its table and of all tables with the same rows.
for (const button of document.querySelectorAll("table[data-rows] thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentNode, column = head.cellIndex, table = head.closest("table");
    const down = head.getAttribute("aria-sort") === "ascending";
    const tables = [...document.querySelectorAll(`table[data-rows="${table.dataset.rows}"]`)];
    for (const other of tables) {
      for (const th of other.querySelectorAll("thead th")) th.removeAttribute("aria-sort");
    }
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keys = [...table.tBodies[0].rows].map(row => row.cells[column].dataset.key);
    const numeric = keys.every(key => key === "" || !isNaN(key));
    const order = [...keys.keys()].sort((a, b) => {
      const [p, q] = [keys[a], keys[b]];
      if (p === "" || q === "") return (p === "") - (q === "");  // missing values stay last
      return (down ? -1 : 1) * (numeric ? p - q : p.localeCompare(q, "en", { numeric: true }));
    });
    for (const { tBodies: [body] } of tables) {
      const rows = [...body.rows];
      body.append(...order.map(i => rows[i]));
    }
  });
}
