"""Tables that compare methods on three data sets."""
