"""Verification engines: networks written once over a few layers, the compilers that take them, and what they wrote.

Which kinds there are, and which compilers build them, is data in `kinds`; `builders.verifier` is the command.
"""
