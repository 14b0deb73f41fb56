"""The paper's toy experiments."""
