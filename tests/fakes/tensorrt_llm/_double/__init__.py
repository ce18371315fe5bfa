"""How the double works: nothing in here has a counterpart in TensorRT-LLM."""
