"""The kernels of the CUDA device, in Triton; each equals its reference up to rounding.

Nothing imports this package unless the device is wanted: `device.triton_kernels` is what a model
takes, `attention.TritonPlan` what a captured graph reads.
Every configuration that is launched is a `Variant` of its module's `variants()`, which is also what
is compiled ahead of time, without a device, for the architectures we ship for. With
TRITON_INTERPRET=1 the same kernels run on CPU tensors. No launch waits for the device.
"""
