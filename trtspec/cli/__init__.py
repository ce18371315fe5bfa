"""The `trtspec` command: what an operator or a curious person types."""
