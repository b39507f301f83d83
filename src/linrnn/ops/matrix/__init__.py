"""Recurrences whose state is a matrix that outer products write to."""
