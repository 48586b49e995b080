"""The training loop: its loaders, batches, steps and phases."""
