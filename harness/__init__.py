"""Everything around the device layer: options, horizon, checkpoints, losses, optimisers."""
