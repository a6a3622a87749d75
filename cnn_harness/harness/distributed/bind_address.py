"""Restrict this process's TensorFlow server to some of this host's addresses (--bind).

TensorFlow's server listens on every network interface and has no option to change that. On Linux, a filter on the listening
socket makes the kernel drop packets for other addresses (socket(7), SO_ATTACH_FILTER). The filter is attached just after the
server starts. A connection that was opened before the filter was attached stays open.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.harness.run.cluster import Cluster, host_of

ALL = "all"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of asm-generic/socket.h
_NETWORK_HEADER = 0xFFF00000  # the offset of the IP header: SKF_NET_OFF of linux/filter.h
_LOAD_WORD, _LOAD_BYTE, _AND, _EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06  # instruction codes of classic BPF
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_LISTENING = "0A"  # the state of a listening socket in /proc/net/tcp


@cache
def listening_addresses(bind: str | None, cluster: Cluster) -> tuple[Address, ...]:
    """Return the addresses to listen on: the addresses given by `bind`, or else this process's address in the cluster.

    () means every interface. Raise OptionError if `bind` is not an address of this host.
    """
    if bind is not None:
        return () if bind.lower() == ALL else _requested(bind)
    own = tuple(filter(_is_here, _resolved(host_of(cluster.addresses[cluster.instance]))))
    if not own or not _can_filter(own):
        return ()  # The cluster's address may belong to a proxy or a forwarded port.
    if not all(each.is_loopback for each in own):
        return own
    # A host may resolve its own name to a loopback address, to which other hosts cannot connect. So listen on loopback only
    # if all instances have loopback addresses.
    everybody = [_resolved(host_of(address)) for address in cluster.addresses]
    return own if all(found and all(each.is_loopback for each in found) for found in everybody) else ()


def restrict_listeners(port: int, addresses: Sequence[Address]) -> None:
    """Make this process accept connections on `port` only if they are addressed to `addresses` or loopback.

    Raise OptionError if this process does not listen on the port.
    """
    listening = _listening(port)
    if not listening:
        raise OptionError(
            f"cannot make port {port} listen on chosen addresses only: its listening socket was not found. To listen on all "
            f"addresses of this machine, give --bind {ALL}"
        )
    for number in listening:
        with socket.socket(fileno=os.dup(number)) as listener:
            _attach(listener, addresses)


def _attach(listener: socket.socket, addresses: Sequence[Address]) -> None:
    program = _filter(addresses)
    content = ctypes.create_string_buffer(b"".join(program))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(content)))


def _can_filter(addresses: Sequence[Address]) -> bool:
    with suppress(OSError), socket.socket() as probe:
        _attach(probe, addresses)
        return sys.platform.startswith("linux") and Path("/proc/self/fd").exists()
    return False


def _requested(text: str) -> tuple[Address, ...]:
    addresses = _resolved(text)
    if not addresses:
        raise OptionError(
            f"--bind {short(text)} is not an address or a known host name. Give an address of this host, or --bind {ALL}"
        )
    here = tuple(filter(_is_here, addresses))
    if not here:
        also = "" if f"{addresses[0]}" == text else f" ({', '.join(map(str, addresses))})"
        raise OptionError(
            f"--bind {short(text)}{also} is not an address of this host. Give an address of this host, or --bind {ALL}"
        )
    if not _can_filter(here):
        raise OptionError(f"--bind {short(text)}: this system does not support filters on sockets; leave the option out")
    return here


def _resolved(host: str) -> tuple[Address, ...]:
    """Return all addresses of a host name, because other instances may connect to any of these addresses."""
    with suppress(ValueError):
        return (ipaddress.ip_address(host.strip("[]")),)
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(ipaddress.ip_address(place[0].partition("%")[0]) for *_, place in found))
    return ()


def _is_here(address: Address) -> bool:
    """Return whether this host has the address. The test is whether a socket can be bound to the address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return not address.is_unspecified
    return False


def _listening(port: int) -> list[int]:
    """Return the descriptors of this process's sockets that listen on a port."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    numbers = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") in sockets:
                numbers.append(int(name))
    return numbers


def _filter(addresses: Sequence[Address]) -> list[bytes]:
    """Return a classic BPF program that accepts packets to the addresses and to loopback (127.0.0.0/8, ::1)."""

    def step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_so, if_not, value)

    accept, drop = step(_RETURN, _ACCEPT), step(_RETURN, _DROP)
    fourth = [step(_LOAD_WORD, _NETWORK_HEADER + 16)]  # the destination address of an IPv4 packet
    for address in (each for each in addresses if each.version == 4):
        fourth += [step(_EQUAL, int(address), 0, 1), accept]
    fourth += [step(_AND, 0xFF000000), step(_EQUAL, 127 << 24, 0, 1), accept, drop]
    sixth = []
    for address in (ipaddress.IPv6Address("::1"), *(each for each in addresses if each.version == 6)):
        for k, word in enumerate(struct.unpack(">4I", address.packed)):  # An IPv6 packet's destination begins at byte 24.
            sixth += [step(_LOAD_WORD, _NETWORK_HEADER + 24 + 4 * k), step(_EQUAL, word, 0, 2 * (3 - k) + 1)]
        sixth.append(accept)
    head = [step(_LOAD_BYTE, _NETWORK_HEADER), step(_AND, 0xF0), step(_EQUAL, 0x40, 0, len(fourth))]
    return [*head, *fourth, *sixth, drop]
