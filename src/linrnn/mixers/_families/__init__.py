"""What the mixers of a family share."""
