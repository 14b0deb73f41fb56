"""All methods on test data, each with the settings chosen by equal tuning."""
