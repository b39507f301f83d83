"""Files and tables, of a user or downloaded, as columns, sequences and bytes."""
