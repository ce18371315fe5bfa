"""Guides compiled by XGrammar, off the path of passes. What costs too much is found out in a process of its own."""
