"""PopDist's function for TensorFlow programs, which gives an IPU configuration the device of this instance."""

from __future__ import annotations

from typing import Any

import popdist


def set_ipu_config(config: Any, ipus_per_replica: int | None = None, configure_device: bool = True) -> None:
    """Set `config.select_ipus` to the device of this instance, unless `configure_device` is false.

    Raise RuntimeError if poprun gives each replica another number of IPUs than `ipus_per_replica`.
    """
    if ipus_per_replica is not None:
        popdist.checkNumIpusPerReplica(ipus_per_replica)
    if configure_device:
        config.select_ipus = popdist.getDeviceId(ipus_per_replica)
