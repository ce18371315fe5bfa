"""Drafters on disk: one small file for each format that `--draft` reads."""
