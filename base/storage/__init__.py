"""Files as they are read and written: whole or not at all, bounded, locked; tables, archives, the user's cache."""
