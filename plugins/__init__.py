"""Device kernels and TensorRT plugins that verify drafts; knows tensors, and neither requests nor engines.

Each launcher has an eager twin of its name and signature, made of the functions of `trtspec.decoding`: its oracle.
The twins of `plugins.launch` are in `plugins.eager`, those of `plugins.launch_verification` in
`plugins.eager_verification`.
"""
