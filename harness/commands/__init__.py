"""What all commands do alike, and the small ones."""
