"""Names as a user may choose them: HTML in a method's and in a client's."""

NASTY = "<b>x"
CLIENT = "<img src=x onerror=alert(1)>"
