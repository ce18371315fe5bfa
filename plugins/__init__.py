"""Device kernels and TensorRT plugins that verify drafts; knows tensors, and neither requests nor engines.

Each kernel has an eager twin in `trtspec.decoding` with its name and signature, which is its oracle.
"""
