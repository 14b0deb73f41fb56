// Draws the figures of a page: each holds its data and layout as JSON.
"use strict";
addEventListener("DOMContentLoaded", () => {
  for (const figure of document.querySelectorAll("figure.plot")) {
    const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
    const plot = document.createElement("div");
    figure.prepend(plot);
    Plotly.newPlot(plot, data, layout, { responsive: true, displaylogo: false });
  }
});
