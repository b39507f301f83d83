"""Compare a downloaded language model in transformers and in linrnn: logits, and greedy tokens.

    python examples/check_checkpoint.py FOLDER

FOLDER is what `hf download` or `save_pretrained` left: config.json and safetensors, of one of the
families of `linrnn.interop.hf.families`. Exits with 1 where the two differ. Code in the folder is
not run. Both compute in float32, one after the other, so weights need twice their size in memory.
"""

import argparse
import gc
import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from linrnn.interop.hf import families, from_pretrained

ALLOWED = 1e-3
"""Largest difference of logits, in parts of the largest logit: what float32 leaves of 60 layers."""


def main() -> None:
    """Run both, and say whether they agree."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog=f"families: {', '.join(families())}"
    )
    parser.add_argument("folder", help="of a downloaded model")
    parser.add_argument("--tokens", type=int, default=64, help="random tokens that both read")
    parser.add_argument("--new-tokens", type=int, default=16, help="that both write after those")
    parser.add_argument("--seed", type=int, default=0, help="of the random tokens")
    args = parser.parse_args()

    theirs = AutoModelForCausalLM.from_pretrained(args.folder, use_safetensors=True)
    torch.manual_seed(args.seed)
    ids = torch.randint(theirs.config.get_text_config().vocab_size, (1, args.tokens))
    kind = theirs.config.model_type
    count = sum(p.numel() for p in theirs.parameters())
    expected, expected_tokens = read(theirs, ids, args.new_tokens)
    del theirs
    gc.collect()
    logits, tokens = read(from_pretrained(args.folder), ids, args.new_tokens)

    difference = float((logits - expected).abs().max() / expected.abs().max())
    same = int((logits.argmax(-1) == expected.argmax(-1)).sum())
    written = int((tokens == expected_tokens).sum())
    print(f"{kind}, {count:,} parameters")
    print(f"largest difference of logits: {difference:.1e} of the largest logit")
    print(f"most likely next tokens: {same} of {args.tokens} are the same")
    print(f"tokens written: {written} of {args.new_tokens} are the same")
    equal = difference <= ALLOWED and same == args.tokens and written == args.new_tokens
    print("EQUAL" if equal else "DIFFERENT")
    sys.exit(0 if equal else 1)


@torch.no_grad()
def read(model: Any, ids: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """Logits of every token, and the tokens that the model writes after them."""
    model.float().eval()
    logits = model(ids).logits
    options = {"do_sample": False, "max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    mask = torch.ones_like(ids)
    return logits, model.generate(ids, attention_mask=mask, **options)[0, ids.shape[1] :]


if __name__ == "__main__":
    main()
