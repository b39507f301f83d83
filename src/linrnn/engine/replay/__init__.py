"""A step of a model, recorded from the operators it runs as, in one native call."""
