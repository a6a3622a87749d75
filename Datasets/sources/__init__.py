"""Data that was opened: the `DataSource` of each kind, where files are looked for, and the tables of the plug-ins."""
