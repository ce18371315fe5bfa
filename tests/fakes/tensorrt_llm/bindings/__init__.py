"""Bindings of the C++ runtime."""
