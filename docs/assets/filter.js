// Menus above the next table, one for each column that is named: rows that do not fit are hidden.
// Without JavaScript the table is there whole.
(function () {
  function cells(row, index) {
    return row.cells[index] ? row.cells[index].textContent.trim() : "";
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
        const fits = menus.every(
          ({ index, select }) => select.value === "all" || cells(row, index) === select.value
        );
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = shown + " of " + rows.length;
      count.setAttribute("aria-live", "polite");
    }
    const bar = document.createElement("div");
    for (const name of box.dataset.columns.split(",")) {
      const index = heads.indexOf(name);
      if (index < 0) continue;
      const values = [...new Set(rows.map((row) => cells(row, index)))].filter(Boolean);
      values.sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
      const made = menu(name, values, apply);
      menus.push({ index, select: made.select });
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
