"""From logits to tokens, on the CPU and without state.

The package promises that what it returns is a function of a row's own logits and its `SampleRow`:
not of the rows beside it, not of earlier calls. The order is logit bias, penalties, the masks of
min_tokens and grammars, temperature, top-k, top-p, min-p; ties go to the lowest id everywhere;
logprobs are those of the unmodified logits.
"""

from branchline.runtime.sampling.logprobs import token_logprobs
from branchline.runtime.sampling.philox import uniform
from branchline.runtime.sampling.rows import Sampled, SampleRow
from branchline.runtime.sampling.sampler import sample

__all__ = ["SampleRow", "Sampled", "sample", "token_logprobs", "uniform"]
