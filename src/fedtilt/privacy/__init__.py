"""Client-level differential privacy: its settings, the mechanism and the accountant."""
