"""Options: catalogues, what constructors declare, import paths, plain values."""
