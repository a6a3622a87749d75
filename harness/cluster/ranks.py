"""This process' number among those that one launcher started, in the launcher's own variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.cluster import slurm

# the number's variable, and that of how many there are; mpirun's go first, as it may itself run inside a step of Slurm
OPENMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_OTHERS = (("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", ""))  # of MPICH and Intel MPI; of other launchers with PMIx
_OF_SLURM = (slurm.RANK, slurm.TASKS[0])


class Rank(NamedTuple):
    """A number as a launcher gives it, unread, and the names of the variables."""

    text: str
    name: str
    size_name: str


def of_openmpi(environ: Mapping[str, str]) -> Rank | None:
    """The number that OpenMPI's mpirun gave."""
    return _first(environ, (OPENMPI,))


def of_launcher(environ: Mapping[str, str]) -> Rank | None:
    """The number that whichever launcher gave."""
    return _first(environ, (OPENMPI, *_OTHERS, *[_OF_SLURM] * slurm.in_step(environ)))


def of_mpi(environ: Mapping[str, str]) -> Rank | None:
    """The number that an mpirun gave, or srun in an mpirun's words."""
    return _first(environ, (OPENMPI, *_OTHERS))


def _first(environ: Mapping[str, str], names: tuple[tuple[str, str], ...]) -> Rank | None:
    return next((Rank(environ[name], name, size) for name, size in names if environ.get(name)), None)
