// Formulas: MathJax is fetched from the site itself, and only by a page that has one.
(function () {
  const here = document.currentScript.src;
  const formulas = () => document.querySelectorAll(".tex, .arithmatex");
  window.MathJax = {
    tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
    options: { ignoreHtmlClass: ".*", processHtmlClass: "tex|arithmatex", enableMenu: false },
    svg: { fontCache: "global" },
  };
  document.addEventListener("DOMContentLoaded", () => {
    if (formulas().length === 0) return;
    const script = document.createElement("script");
    script.src = new URL("mathjax/tex-svg.js", here).href;
    document.head.append(script);
  });
})();
