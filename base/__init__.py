"""The ground floor, which imports nothing of the project but itself: errors, options' fields, plug-ins, keyed draws."""
