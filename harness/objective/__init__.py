"""The objective of a training, and the rules by which updates follow it: losses, metrics, optimisers."""
