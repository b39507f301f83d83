"""What the site makes of declarations and of measured tables: one kind of page a module."""
