"""Builds engine folders from checkpoints, ahead of serving. Nothing here runs in a server."""
