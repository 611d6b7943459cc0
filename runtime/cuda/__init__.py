"""The CUDA device's runner: state by slot on the device, captured graphs, nothing that waits.

The package promises that a launch returns without waiting for the device, and that a step which
only makes the same rows one token longer copies nothing to it: its ids, positions and pages are
made there, from what the steps before left. Any other step sends its changes as one buffer.

Everything here also runs on CPU tensors, with graphs that record calls instead of kernels, so all
of it is tested without a device.
"""

from branchline.runtime.cuda.start import start

__all__ = ["start"]
