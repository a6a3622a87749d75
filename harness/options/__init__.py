"""What can be asked for, and from where: sections, sources, configuration files, rules between options."""
