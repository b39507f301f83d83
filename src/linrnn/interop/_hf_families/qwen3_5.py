"""Qwen3.5 as it is published, with an encoder of images: its language model."""

from linrnn.interop._hf_families import qwen3_5_text
from linrnn.interop._hf_nested import TextOf

FAMILY = TextOf(qwen3_5_text.FAMILY, "qwen3_5")
