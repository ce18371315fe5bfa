"""Plugins of compiled engines."""
