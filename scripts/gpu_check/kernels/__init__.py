"""`scripts/gpu-check --kernels`: the kernels of `plugins` on a GPU. Needs PyTorch, Triton and this repository."""
