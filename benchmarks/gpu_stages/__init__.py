"""The stages of `benchmarks/gpu.py`.

A stage is a generator of `Row`s: what it has yielded counts, whatever becomes of it afterwards.
"""
