"""Engine folders for TensorRT-LLM 1.2.1: compiled engines, and artifacts of its PyTorch flow."""
