"""Which addresses cannot be reached from other machines."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether a host, by name or number, stands for this machine alone. What cannot be resolved does not."""
    if not host:
        return False  # where a server listens, this is every address
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_own(str(address[0])) for *_, address in found)


def reaches_loopback(target: str) -> bool:
    """The same of an address as clients write it, such as `127.0.0.1:50051`; a socket file is on this machine."""
    kind, colon, rest = target.partition(":")
    if colon and kind in ("unix", "unix-abstract"):
        return True
    if colon and kind in ("dns", "ipv4", "ipv6"):
        target = rest.lstrip("/")
    return is_loopback(target.rpartition(":")[0] or target)


def _own(number: str) -> bool:
    address = ipaddress.ip_address(number.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
