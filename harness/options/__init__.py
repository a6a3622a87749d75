"""Options and their sources: sections, configuration files, groups that exclude each other, weight update rules."""
