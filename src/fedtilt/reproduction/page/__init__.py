"""The page of the reproduction: Markdown, HTML and SVG."""
