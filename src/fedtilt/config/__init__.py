"""Settings: declared once, with their meaning and limits; specs, docs and errors follow from that."""
