// Heads of a table that sort its rows: numbers by data-value where a cell has one, else words.
// Empty cells stay last. Without JavaScript the table is there as it was made.
(function () {
  function key(row, index) {
    const cell = row.cells[index];
    const text = cell.textContent.trim();
    if (!text) return null;
    const number = parseFloat(cell.dataset.value ?? text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  }

  function compare(one, other) {
    if (typeof one === typeof other) {
      return typeof one === "number" ? one - other : one.localeCompare(other);
    }
    return typeof one === "number" ? -1 : 1;
  }

  function sort(table, index, down) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, key: key(row, index) }));
    rows.sort((one, other) => {
      if (one.key === null || other.key === null) return (one.key === null) - (other.key === null);
      return (down ? -1 : 1) * compare(one.key, other.key);
    });
    body.append(...rows.map(({ row }) => row));
  }

  function prepare(table) {
    if (table.dataset.ready) return;
    table.dataset.ready = "yes"; // the script may stand on a page more than once
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      const button = document.createElement("button");
      button.style.cssText = "font:inherit;color:inherit;background:none;border:0;cursor:pointer;padding:0";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(table, index, down);
      });
    });
  }

  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll("table[data-sort]").forEach(prepare);
  });
})();
