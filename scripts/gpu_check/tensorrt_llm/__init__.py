"""`scripts/gpu-check --tensorrt-llm`: whether the installed TensorRT-LLM is what this release is written for."""
