"""Pages of the site from declarations and measured tables: one kind of page a module."""
