"""Pure functions of tensors: the tilted mean, the losses, distances between models, and aggregation."""
