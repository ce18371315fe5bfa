"""Device kernels and TensorRT plugins that verify drafts; knows tensors, and neither requests nor engines.

Each launcher has an eager twin in `plugins.eager` with its name and signature, made of the functions of
`trtspec.decoding`: its oracle.
"""
