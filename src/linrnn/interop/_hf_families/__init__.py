"""Families of language models of transformers that we have a counterpart of: one a file.

A file is named like the ``model_type`` of its configuration, and has one attribute, ``FAMILY``.
"""
