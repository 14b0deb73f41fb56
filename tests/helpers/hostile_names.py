"""HTML as the name of a method and of a client: pages must escape it."""

NASTY = "<b>x"
CLIENT = "<img src=x onerror=alert(1)>"
