"""The device ids of the emulated system, as Graphcore's `gc-info -l` lists them. Single IPUs come first, then groups of 2,
4, 8, ... neighbours. A group acts as one device."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_SYSTEM = 16  # a POD16


class DeviceError(Exception):
    """The device id does not exist, or its group has the wrong number of IPUs."""


@dataclass(frozen=True)
class Device:
    """A device id and the numbers of its IPUs."""

    id: int
    ipus: range

    @property
    def named(self) -> str:
        """The numbers of the device's IPUs as text, such as "IPUs 0 to 3"."""
        return f"IPU {self.ipus[0]}" if len(self.ipus) == 1 else f"IPUs {self.ipus[0]} to {self.ipus[-1]}"

    def __str__(self) -> str:
        return f"device {self.id} ({self.named})"


def group_size(ipus: int) -> int:
    """Return the size of the smallest group with at least `ipus` IPUs. Sizes are powers of two."""
    return 1 << max(0, ipus - 1).bit_length()


def system_size(ipus: int) -> int:
    """Return the size of the emulated system for a run that needs `ipus` IPUs."""
    return max(SMALLEST_SYSTEM, group_size(ipus))


def devices(size: int) -> tuple[Device, ...]:
    """Return every device of a system with `size` IPUs. `size` is a power of two."""
    return tuple(_device(id, size) for id in range(2 * size - 1))


def _device(id: int, size: int) -> Device:
    group, first = 1, 0  # `first` is the id of the first group with `group` IPUs.
    while id >= first + size // group:
        first += size // group
        group *= 2
    place = (id - first) * group
    return Device(id, range(place, place + group))


def select(choice: str, ipus: int, purpose: str) -> Device:
    """Return the device for a program that needs `ipus` IPUs. `choice` is a device id, or AUTO for the first that fits.

    Errors name the `purpose`, such as "training".
    """
    size, group = system_size(ipus), group_size(ipus)
    first = 2 * (size - size // group)  # the ids of size + size/2 + ... smaller groups come first.
    last = first + size // group - 1
    if choice == "AUTO":
        return _device(first, size)
    ids = f"{first} to {last}" if last > first else f"{first}"
    if len(choice) > 9 or int(choice) >= 2 * size - 1:
        raise DeviceError(
            f"--select-ipu {choice[:20]}: no such device. The emulated system of {size} IPUs has the device ids 0 to "
            f"{2 * size - 2}; give AUTO, or for {purpose} an id of {ids}"
        )
    device = _device(int(choice), size)
    if len(device.ipus) != group:
        raise DeviceError(
            f"--select-ipu {choice}: {device} has {len(device.ipus)} IPU{'s' if len(device.ipus) > 1 else ''}, but "
            f"{purpose} needs {group}. Give AUTO or an id of {ids}; to list the devices, run gc-info -l"
        )
    return device
