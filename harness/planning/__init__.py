"""`cnn plan`: from options to predictions, and predictions as text, JSON and a page."""
