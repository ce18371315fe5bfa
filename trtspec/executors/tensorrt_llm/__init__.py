"""TensorRT-LLM 1.2.1 behind our executor: compiled engines, and its PyTorch flow. Nothing here imports it at once."""
