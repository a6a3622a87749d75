"""`cnn completion`: scripts that let a shell complete commands, options and values, written from the tables of options."""
