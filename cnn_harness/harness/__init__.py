"""Everything around the device layer: options, runs, checkpoints, losses, optimisers."""
