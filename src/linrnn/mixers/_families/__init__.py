"""Parts that the mixers of a family share."""
