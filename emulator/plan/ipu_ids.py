"""The device ids of the emulated system, as the original's `gc-info -l` lists them: single IPUs first, then groups of 2, 4,
8, ... neighbours that act as one device."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_SYSTEM = 16  # a POD16


class DeviceError(Exception):
    """A device id that does not exist, or whose group has the wrong number of IPUs."""


@dataclass(frozen=True)
class Device:
    """A device id and the IPUs that attach with it."""

    id: int
    ipus: range

    @property
    def named(self) -> str:
        """The device's IPUs by number, as text."""
        return f"IPU {self.ipus[0]}" if len(self.ipus) == 1 else f"IPUs {self.ipus[0]} to {self.ipus[-1]}"

    def __str__(self) -> str:
        return f"device {self.id} ({self.named})"


def group_size(ipus: int) -> int:
    """Return the size of the smallest group with at least `ipus` IPUs: a power of two."""
    return 1 << max(0, ipus - 1).bit_length()


def system_size(ipus: int) -> int:
    """Return the size of the emulated system for a run that needs `ipus` IPUs."""
    return max(SMALLEST_SYSTEM, group_size(ipus))


def devices(size: int) -> tuple[Device, ...]:
    """Return every device of a system of `size` IPUs, a power of two."""
    return tuple(_device(id, size) for id in range(2 * size - 1))


def _device(id: int, size: int) -> Device:
    """Return the device with an id below 2 * size - 1."""
    group, first = 1, 0  # size of the groups, and the id of the first of them
    while id >= first + size // group:
        first += size // group
        group *= 2
    place = (id - first) * group
    return Device(id, range(place, place + group))


def select(choice: str, ipus: int, purpose: str) -> Device:
    """Return the device for something that needs `ipus` IPUs. `choice`: an id, or AUTO for the first that fits.

    `purpose` ("training") is for the error.
    """
    size, group = system_size(ipus), group_size(ipus)
    first = 2 * (size - size // group)  # id of the first group of this size, after size + size/2 + ... smaller ones
    last = first + size // group - 1
    if choice == "AUTO":
        return _device(first, size)
    ids = f"{first} to {last}" if last > first else f"{first}"
    if len(choice) > 9 or int(choice) >= 2 * size - 1:
        raise DeviceError(
            f"--select-ipu {choice[:20]}: no such device. An emulated system of {size} IPUs has the ids 0 to "
            f"{2 * size - 2}, and {purpose} needs one of {ids}; gc-info -l lists them"
        )
    device = _device(int(choice), size)
    if len(device.ipus) != group:
        raise DeviceError(
            f"--select-ipu {choice}: {device} has {len(device.ipus)} IPU{'s' if len(device.ipus) > 1 else ''}, but "
            f"{purpose} needs {group}. Give AUTO or an id of {ids}; gc-info -l lists them"
        )
    return device
