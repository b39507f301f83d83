// Menus above the next table, one for each column that is named: rows that do not fit are hidden.
// "COLUMN at least" and "COLUMN at most" compare numbers with those of the column, or with those
// behind these words; a cell that begins with none fits no bound.
// Without JavaScript the table is there whole.
(function () {
  function cells(row, index) {
    return row.cells[index] ? row.cells[index].textContent.trim() : "";
  }

  function number(text) {
    return parseFloat(text.replace(/,/g, ""));
  }

  // What a menu is of: its column, the values to choose from, and which cells fit one of them.
  function wanted(name, heads, rows) {
    const [, column, bound, given] = name.match(/^(.*?)(?: (at least|at most)([\d. ]*))?$/);
    const index = heads.indexOf(column);
    const found = rows.map((row) => cells(row, index)).filter(Boolean);
    if (!bound) {
      const values = [...new Set(found)];
      values.sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
      return { index, label: name, values, fits: (cell, value) => cell === value };
    }
    const bounds = given.trim() ? given.trim().split(" ") : found;
    const numbers = [...new Set(bounds.map(number))].filter(Number.isFinite);
    numbers.sort((one, other) => one - other);
    const values = numbers.map((value) => value.toLocaleString("en"));
    const fits = (cell, value) =>
      bound === "at least" ? number(cell) >= number(value) : number(cell) <= number(value);
    return { index, label: `${column} ${bound}`, values, fits };
  }

  function menu(name, values, chosen) {
    const label = document.createElement("label");
    const select = document.createElement("select");
    label.style.cssText = "display:inline-block;margin:0 .8em .6em 0;font-size:.7rem";
    select.style.cssText = "margin-left:.4em;max-width:12em;color:inherit;background:transparent;border:1px solid";
    label.append(name, select);
    for (const value of ["all", ...values]) {
      select.append(new Option(value, value));
    }
    select.addEventListener("change", chosen);
    return { label, select };
  }

  function prepare(box) {
    const after = Node.DOCUMENT_POSITION_FOLLOWING;
    const tables = [...document.querySelectorAll("table")];
    const table = tables.find((one) => box.compareDocumentPosition(one) & after);
    if (!table || box.dataset.ready) return;
    box.dataset.ready = "yes"; // the script may stand on a page more than once
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    const rows = [...table.tBodies[0].rows];
    const count = document.createElement("p");
    const menus = [];
    function apply() {
      let shown = 0;
      for (const row of rows) {
        const kept = menus.every(
          ({ index, fits, select }) => select.value === "all" || fits(cells(row, index), select.value)
        );
        row.hidden = !kept;
        shown += kept;
      }
      count.textContent = shown + " of " + rows.length;
      count.setAttribute("aria-live", "polite");
    }
    const bar = document.createElement("div");
    for (const name of box.dataset.columns.split(",")) {
      const { index, label, values, fits } = wanted(name, heads, rows);
      if (index < 0) continue;
      const made = menu(label, values, apply);
      menus.push({ index, fits, select: made.select });
      bar.append(made.label);
    }
    bar.append(count);
    box.append(bar);
    apply();
  }

  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll(".linrnn-filter").forEach(prepare);
  });
})();
