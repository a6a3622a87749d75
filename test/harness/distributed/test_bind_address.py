"""An instance's server accepts connections to its own address only."""

from __future__ import annotations

import ipaddress
import subprocess
import sys

import pytest
from instances import ROOT

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.distributed import bind_address
from cnn_harness.harness.run.cluster import Cluster

V4, V6 = "10.1.2.3", "fd00::1:2"
HOSTS = {
    "here": (V4,), "here6": (V6,), "both": (V6, V4), "localhost": ("::1", "127.0.0.1"), "own-name": ("127.0.1.1",),
    "elsewhere": ("192.0.2.7",), "half": (V4, "192.0.2.7"), "nowhere": (),
}  # fmt: skip


@pytest.fixture
def network(monkeypatch):
    """Return names with the addresses above; this host has the private ones."""
    known = {name: tuple(map(ipaddress.ip_address, each)) for name, each in HOSTS.items()}
    resolved = bind_address._resolved
    monkeypatch.setattr(bind_address, "_resolved", lambda host: known[host] if host in known else resolved(host))
    monkeypatch.setattr(bind_address, "_is_here", lambda address: "192.0.2" not in str(address))
    bind_address.listening_addresses.cache_clear()
    yield
    bind_address.listening_addresses.cache_clear()


@pytest.mark.parametrize(
    ("asked", "hosts", "expected"),
    [
        (None, ("here", "elsewhere"), [V4]),
        (None, ("both", "elsewhere"), [V6, V4]),
        (None, ("half", "elsewhere"), [V4]),
        (None, ("localhost", "localhost"), ["::1", "127.0.0.1"]),
        (None, ("127.0.0.1", "localhost"), ["127.0.0.1"]),
        (None, ("own-name", "elsewhere"), []),  # as Debian names a host for itself
        (None, ("localhost", "nowhere"), []),
        (None, ("elsewhere", "here"), []),
        (None, ("nowhere", "here"), []),
        ("all", ("here", "elsewhere"), []),
        (V4, ("elsewhere", "here"), [V4]),
        ("both", ("elsewhere", "here"), [V6, V4]),
        ("127.0.0.1", ("here", "here"), ["127.0.0.1"]),
    ],
)
def test_server_binds_listed_or_requested_address(asked, hosts, expected, network):
    cluster = Cluster(tuple(f"{host}:{2222 + k}" for k, host in enumerate(hosts)), 0)
    assert list(map(str, bind_address.listening_addresses(asked, cluster))) == expected


@pytest.mark.parametrize(
    ("asked", "part"), [("elsewhere", r"elsewhere \(192.0.2.7\)"), ("192.0.2.9", "192.0.2.9"), ("nowhere", "nowhere")]
)
def test_address_of_another_host_is_rejected(asked, part, network):
    with pytest.raises(OptionError, match=f"^--bind {part}"):
        bind_address.listening_addresses(asked, Cluster(("here:1", "here:2"), 0))


IN_A_NETWORK_OF_ITS_OWN = """
import ipaddress, socket
from cnn_harness.harness.distributed import bind_address

def reached(address):
    try:
        socket.create_connection((address, port), 0.3).close()
    except TimeoutError:
        return False
    return True

hosts = ["192.0.2.1", "192.0.2.2", "fd00::1", "127.0.0.1", "::1"]
with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    port = server.getsockname()[1]
    print([host for host in hosts if reached(host)])
    for names in (["192.0.2.2"], ["127.0.0.1"], ["fd00::1", "192.0.2.1"]):
        bind_address.restrict_listeners(port, [ipaddress.ip_address(name) for name in names])
        print([host for host in hosts if reached(host)])
"""
NETWORK = """
ip link set lo up && ip addr add 192.0.2.1/32 dev lo && ip addr add 192.0.2.2/32 dev lo && ip addr add fd00::1/128 dev lo nodad
"""


def test_server_accepts_connections_to_address_only():
    """With a dual-stack socket, as TensorFlow uses, in a network namespace with five addresses."""
    alone = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    try:
        subprocess.run([*alone, NETWORK], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("networks of one's own are not to be had here")
    command = [*alone, f'{NETWORK.strip()} && exec "$0" -c "$1"', sys.executable, IN_A_NETWORK_OF_ITS_OWN]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == [
        "['192.0.2.1', '192.0.2.2', 'fd00::1', '127.0.0.1', '::1']",
        "['192.0.2.2', '127.0.0.1', '::1']",
        "['127.0.0.1', '::1']",
        "['192.0.2.1', 'fd00::1', '127.0.0.1', '::1']",
    ]
