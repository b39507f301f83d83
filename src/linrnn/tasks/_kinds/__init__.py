"""Code that tasks of a kind share: the contract, generated and drawn examples, windows."""
