"""The embedded backend: a compact decoder in PyTorch with real in-flight batching and real speculation."""
