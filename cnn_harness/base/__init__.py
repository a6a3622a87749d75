"""The lowest layer, used by all others: errors, fields for options, plug-ins, keyed random draws."""
