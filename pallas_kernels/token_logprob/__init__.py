"""Log-probabilities of tokens and the entropy out of hidden states and the head, without the logits of all tokens."""

from pallas_kernels.token_logprob.api import token_logprob

__all__ = ["token_logprob"]
