"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  root.classList.add("scripted");

  // -- light and dark: the page's CSS variables also colour the figures ------------------------------------------
  const preference = matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme");
  let chosen = null;
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function template() {
    const axis = {
      gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line"), automargin: true,
      ticks: "", title: { font: { size: 12, color: color("--soft") }, standoff: 8 },
      tickfont: { size: 11, color: color("--soft") },
    };
    return { layout: {
      paper_bgcolor: color("--card"), plot_bgcolor: color("--card"),
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("--ink") },
      hoverlabel: { bgcolor: color("--ink"), bordercolor: color("--ink"), font: { color: color("--card"), size: 12 } },
      xaxis: axis, yaxis: axis, coloraxis: { colorbar: { tickfont: { size: 11, color: color("--soft") } } },
    } };
  }
  const heat = () => {
    const stops = color("--heat").split(",").map((stop) => stop.trim());
    return stops.map((stop, i) => [i / (stops.length - 1), stop]);
  };
  function themed(layout) {
    return layout.coloraxis ? { template: template(), "coloraxis.colorscale": heat() } : { template: template() };
  }
  function paint(dark) {
    root.dataset.theme = dark ? "dark" : "light";
    toggle.textContent = dark ? "Light" : "Dark";
    toggle.setAttribute("aria-pressed", String(dark));
    for (const plot of all(".plot")) if (plot.layout) Plotly.relayout(plot, themed(plot.layout));
  }
  const dark = () => (chosen === null ? preference.matches : chosen);
  toggle.addEventListener("click", () => {
    const next = !dark();
    chosen = next === preference.matches ? null : next; // null: follow the system
    paint(next);
  });
  preference.addEventListener("change", () => paint(dark()));
  addEventListener("beforeprint", () => paint(false));
  addEventListener("afterprint", () => paint(dark()));
  paint(dark());

  // -- plotly.js is compressed in the page ------------------------------------------------------------------------
  async function unpack() {
    const packed = document.getElementById("plotly");
    if (!packed) return;
    const bytes = Uint8Array.from(atob(packed.textContent), (character) => character.charCodeAt(0));
    const source = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const text = await new Response(source).text();
    document.head.append(Object.assign(document.createElement("script"), { textContent: text }));
    packed.remove();
    root.classList.add("plotting");
  }
  const plotly = unpack().catch(() => {
    const reason = "This browser is too old to draw figures; the CSV file has the data.";
    for (const plot of all(".plot")) plot.textContent = reason;
    return new Promise(() => {});
  });

  // -- figures: drawn just before they scroll into view, so that long pages open at once --------------------------
  const contents = new Map();
  const content = (figure) => {
    if (!contents.has(figure)) contents.set(figure, JSON.parse(figure.querySelector("script").textContent));
    return contents.get(figure);
  };
  const touch = matchMedia("(pointer: coarse)").matches; // on touch screens, dragging scrolls the page
  function draw(figure) {
    const plot = figure.querySelector(".plot");
    if (plot.layout) return;
    const { data, layout } = content(figure);
    const colored = { ...layout, template: template(), dragmode: touch ? false : "zoom" };
    if (layout.coloraxis) colored.coloraxis = { ...layout.coloraxis, colorscale: heat() };
    Plotly.newPlot(plot, data, colored, { responsive: true, displayModeBar: false, showTips: false });
  }
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "600px" });
  plotly.then(() => {
    all("figure").forEach((figure) => near.observe(figure));
    addEventListener("beforeprint", () => all("figure").forEach(draw));
  });

  function save(name, href) {
    const link = Object.assign(document.createElement("a"), { download: name, href });
    link.click();
  }
  for (const button of all("[data-download]")) {
    const figure = button.closest("figure");
    button.addEventListener("click", async () => {
      if (button.dataset.download === "png") {
        await plotly;
        draw(figure);
        const plot = figure.querySelector(".plot");
        Plotly.downloadImage(plot, { format: "png", filename: figure.id, scale: 2,
          width: plot.clientWidth, height: plot.clientHeight });
      } else {
        const url = URL.createObjectURL(new Blob([content(figure).csv], { type: "text/csv" }));
        save(`${figure.id}.csv`, url);
        setTimeout(() => URL.revokeObjectURL(url), 1000);
      }
    });
  }
  for (const select of all("select[data-key]")) {
    select.addEventListener("change", async () => {
      await plotly;
      const figure = select.closest("figure");
      draw(figure);
      const plot = figure.querySelector(".plot");
      const choices = all("select[data-key]", figure).map((s) => [s.dataset.key, s.value]);
      const visible = plot.data.map((trace) => choices.every(([key, value]) => trace.meta[key] === value));
      Plotly.restyle(plot, { visible });
    });
  }

  // -- tables ----------------------------------------------------------------------------------------------------
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  };
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true }));
  for (const button of all("table.sortable thead button")) {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const other = { ascending: "descending", descending: "ascending" };
      const next = now ? other[now] : button.dataset.first;
      all("th", head.parentElement).forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const column = head.cellIndex;
      body.append(...[...body.rows].sort((a, b) => sign * order(value(a, column), value(b, column))));
    });
  }
  for (const tabs of all(".tabs")) {
    const inputs = all("input", tabs);
    const show = () => inputs.forEach((input) => { document.getElementById(input.value).hidden = !input.checked; });
    inputs.forEach((input) => input.addEventListener("change", show));
    show();
  }
})();
