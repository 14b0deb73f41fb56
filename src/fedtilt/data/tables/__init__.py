"""Tables: reading, schema, summaries of sites, splits and warnings."""
