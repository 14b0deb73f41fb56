"""Data of other libraries and layouts: clients one by one, PyTorch, Hugging Face, LEAF."""
