"""Speculative decoding as a gRPC service.

Importing this package is light: it loads neither torch nor grpc.
"""

__version__ = "0.1.0"
