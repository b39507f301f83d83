"""Recurrences that are linear in a vector, and what is made of them."""
