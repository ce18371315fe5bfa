"""The gRPC face of an engine: protos in, core values through, protos out.

It knows text, time and clients. It does not know how tokens are made, and it never loads PyTorch.
"""
