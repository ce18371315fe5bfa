"""What is behind the LLM API."""
