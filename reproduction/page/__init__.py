"""The page on all experiments, as Markdown, HTML and SVG."""
