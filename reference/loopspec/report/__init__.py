"""Reports: what was found, for a terminal, a file or a CI system."""
