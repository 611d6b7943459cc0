"""Models: what the loop may ask of one, and how one is made from a file, a directory or a name.

`ForwardInputs` and `Model` are the contract with the loop; `branchline.runtime.models.load` makes a
model that keeps it. This package does not import torch by itself.
"""

from branchline.runtime.models.inputs import ForwardInputs, Model

__all__ = ["ForwardInputs", "Model"]
