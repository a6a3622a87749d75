"""The training loop and its reports."""
