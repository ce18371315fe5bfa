"""Where grpcurl may ask for the interface."""

from __future__ import annotations

from trtspec.loopback import is_loopback
from trtspec.service.options import ServeOptions


def place(options: ServeOptions) -> str:
    """The port of reflection: `main`, `admin` or `off`."""
    security = options.security
    if security.reflection != "auto":
        return security.reflection
    if is_loopback(options.host):
        return "main"
    return "admin" if security.admin_port >= 0 else "off"
