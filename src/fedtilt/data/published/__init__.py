"""Published data sets: the catalogue, its files and their readers."""
