"""Kernels for passes of few rows, where reading the weights is all that should cost time."""
