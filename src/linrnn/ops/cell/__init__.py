"""Recurrences that are any step a person writes."""
