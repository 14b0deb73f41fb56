"""The published tables of other libraries, trained with their settings."""
