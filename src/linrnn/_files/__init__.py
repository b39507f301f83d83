"""Files: the one door to them, how they are written and read, and what goes wrong."""
