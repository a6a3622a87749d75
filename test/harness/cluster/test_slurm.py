"""A step of Slurm as the instances of a run, from variables as srun 22.05 sets them: one environment is a whole task's, those
beside it have what differs in other steps of the same two nodes."""

from __future__ import annotations

import itertools
import random
import socket

import pytest
from slurm_tasks import OF_STEPS, TASK, found, task

from base.errors import OptionError
from harness.cluster import membership, slurm
from harness.cluster.cluster import Cluster
from harness.processes import folders, team

# the batch script of the same job, which no step has touched
SCRIPT = {
    **task(**{name.removeprefix("SLURM_"): None for name in (*OF_STEPS, "SLURM_DISTRIBUTION")}, PROCID=0, NODEID=0),
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
# a batch script that a task of step 13 submitted, which itself ran alone: the step's variables come along
FROM_INSIDE = {**task(JOB_ID=3, STEP_ID=13, PROCID=0, NODEID=0, STEP_NODELIST="n1", STEP_NUM_TASKS=1, STEP_TASKS_PER_NODE=1),
               "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}  # fmt: skip
# salloc's shell, as LaunchParameters=use_interactive_step has it
SHELL = task(STEP_ID=0xFFFFFFFA, PROCID=0, NODEID=0, NTASKS=1, TASKS_PER_NODE=1, STEP_NODELIST="n1")


def test_the_tasks_of_a_step_are_the_instances():
    cluster = found(TASK)
    assert cluster.addresses == ("n1:26001", "n1:26002", "n2:26001")
    assert (cluster.instance, cluster.size, cluster.neighbours, cluster.source) == (2, 3, 1, "Slurm")
    assert membership.is_later_instance(TASK) and not membership.is_later_instance(task(PROCID=0))
    assert folders._tag(1, cluster.source) == "worker1"


# SLURM_DISTRIBUTION, tasks of each node, and (SLURM_NODEID, SLURM_LOCALID) of each task, as srun's tasks printed them
PRINTED = [
    ("block", "3,1", [(0, 0), (0, 1), (0, 2), (1, 0)]),
    ("block:cyclic", "3,1", [(0, 0), (0, 1), (0, 2), (1, 0)]),
    ("cyclic:block,nopack", "3,1", [(0, 0), (1, 0), (0, 1), (0, 2)]),
    ("cyclic", "2,1", [(0, 0), (1, 0), (0, 1)]),
    ("cyclic", "3,2", [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]),
    ("cyclic", "1(x2)", [(0, 0), (1, 0)]),  # two components of a job: srun -n1 : -n1
    (None, "1(x2)", [(0, 0), (1, 0)]),
]


@pytest.mark.parametrize(("distribution", "counts", "places"), PRINTED)
def test_tasks_are_where_srun_puts_them(distribution, counts, places):
    each = [
        found(
            task(DISTRIBUTION=distribution, TASKS_PER_NODE=counts, NTASKS=len(places), PROCID=rank, NODEID=node, LOCALID=local,
                 STEP_RESV_PORTS="26005-26009")
        )
        for rank, (node, local) in enumerate(places)
    ]  # fmt: skip
    assert [cluster.instance for cluster in each] == list(range(len(places)))
    assert {cluster.addresses for cluster in each} == {tuple(f"n{node + 1}:{26005 + local}" for node, local in places)}


def test_one_task_is_alone():
    cluster = found(task(NTASKS=1, TASKS_PER_NODE=1, STEP_NODELIST="n2", NODEID=0, PROCID=0))
    assert (cluster.size, cluster.instance, cluster.addresses) == (1, 0, ())


def test_names_of_variables_that_stand_in_for_the_steps():
    older = {"STEP_NODELIST": None, "STEP_NUM_TASKS": None, "STEP_TASKS_PER_NODE": None}
    assert found(task(**older)) == found(TASK)


LISTS = [
    ("n1", ["n1"]),
    ("node[01-03,07],gpu1", ["node01", "node02", "node03", "node07", "gpu1"]),
    ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
    ("n[9-11]", ["n9", "n10", "n11"]),
    ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
    ("gpu-a.site_1,gpu-b.site_1", ["gpu-a.site_1", "gpu-b.site_1"]),
    ("r[1,3]n[0-1],r7", ["r1n0", "r1n1", "r3n0", "r3n1", "r7"]),
]


@pytest.mark.parametrize(("text", "names"), LISTS)
def test_lists_of_nodes(text, names):
    assert list(slurm.expanded(text)) == names


def shortened(words: list[str], rng: random.Random) -> str:
    """Numbers in their order, as Slurm writes them; a few neighbours are left apart."""
    runs: list[list[str]] = []
    for word in words:
        if runs and int(word) == int(runs[-1][-1]) + 1 and len(word) == len(runs[-1][0]) and rng.random() < 0.9:
            runs[-1].append(word)
        else:
            runs.append([word])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def test_what_is_shortened_expands_to_what_it_was():
    """Names of a number or two, with leading zeros or none."""
    for seed in range(300):
        rng = random.Random(seed)
        written, names = [], []
        for _ in range(rng.randint(1, 4)):
            form, choices = "", [[""]]
            for _ in range(rng.randint(1, 2)):
                letters, width = rng.choice(("n", "gpu-", "r.x_")), rng.randint(1, 4)
                words = [f"{number:0{width}}" for number in sorted(rng.sample(range(120), rng.randint(1, 8)))]
                form += f"{letters}[{shortened(words, rng)}]"
                choices.append([letters + word for word in words])
            written.append(form)
            names += ["".join(each) for each in itertools.product(*choices)]
        assert list(slurm.expanded(",".join(written))) == names, written


def test_counts_of_tasks():
    assert slurm.per_node("2(x3),1") == (2, 2, 2, 1) and slurm.per_node("4") == (4,)


def test_neighbouring_jobs_and_steps_have_ports_of_their_own():
    """Of 40 jobs in a row on one node, with 8 steps of 16 tasks each."""
    for first in (1, 4711, 2**32 - 50):
        ports = [port for job in range(40) for step in range(8) for port in slurm.shared_ports(first + job, step, 16)]
        assert len(set(ports)) == len(ports) and min(ports) >= 10_240 and max(ports) < 32_768
    assert len(set(slurm.shared_ports(7, 0, 300))) == 300


def test_ports_that_slurm_has_not_reserved_are_the_jobs_own():
    one, other = (found(task(STEP_RESV_PORTS=None, JOB_ID=job)) for job in (1, 2))
    assert not set(one.addresses) & set(other.addresses)
    assert found(task(STEP_RESV_PORTS=None)) == one
    assert found(task(STEP_RESV_PORTS="12000,12007")).addresses == ("n1:12000", "n1:12007", "n2:12000")


def test_a_taken_port_leads_to_reserved_ones():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        cluster = Cluster((f"n1:{taken.getsockname()[1]}", "n1:1"), 0, source="Slurm")
        with pytest.raises(OptionError, match="cannot listen on port .* or have Slurm reserve some: srun --resv-ports=2$"):
            team.check_port(cluster)


OUTSIDE = "no task of srun, but the one process of a script or shell of Slurm's job {}; start it with srun"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (SCRIPT, OUTSIDE.format(1)),
        (FROM_INSIDE, OUTSIDE.format(3)),
        (SHELL, OUTSIDE.format(1)),
        (task(STEP_NODELIST="n[1-3]"), "SLURM_STEP_NODELIST has 3 nodes, SLURM_STEP_TASKS_PER_NODE 3 tasks on 2"),
        (task(NTASKS=4), "SLURM_STEP_NUM_TASKS is 4 and SLURM_PROCID 2: they do not fit together; start with `srun "),
        (task(PROCID=3), "SLURM_STEP_NUM_TASKS is 3 and SLURM_PROCID 3: they do not fit together"),
        (task(PROCID="x"), "SLURM_PROCID is 'x', but must be a whole number; start with srun"),
        (task(PROCID="1" * 11), "SLURM_PROCID is '11111111111', but must be a whole number of at most 10 digits; start"),
        (task(LOCALID=None), "SLURM_LOCALID is '', but must be a whole number; start with srun"),
        (task(NODEID=0, LOCALID=1), "task 2 is number 1 on node 0 (SLURM_LOCALID, SLURM_NODEID), but number 0 on node 1 by"),
        (task(DISTRIBUTION="cyclic"), "and SLURM_DISTRIBUTION cyclic; start with srun --distribution=block"),
        (task(DISTRIBUTION="plane"), "SLURM_DISTRIBUTION 'plane': which task is on which node is known of block and cyclic"),
        (task(DISTRIBUTION="arbitrary"), "start with srun --distribution=block, or give TF_CONFIG"),
        (task(STEP_NODELIST="n[1-2"), "SLURM_STEP_NODELIST 'n[1-2' is no list as Slurm writes it (node[01-03,07],gpu1)"),
        (task(STEP_NODELIST="n[2-1]"), "is no list as Slurm writes it"),
        (task(STEP_NODELIST="n1,,n2"), "is no list as Slurm writes it"),
        (task(STEP_NODELIST="n[1-2]x[]"), "is no list as Slurm writes it"),
        (task(STEP_NODELIST="n1 n2"), "is no list as Slurm writes it"),
        (task(STEP_NODELIST="n[1-999999999]"), "has more than 65536 nodes"),
        (task(STEP_NODELIST="n1,n1"), "has n1:26001 twice"),
        (task(TASKS_PER_NODE="2(x"), "SLURM_STEP_TASKS_PER_NODE '2(x' is no list as Slurm writes it (2(x3),1)"),
        (task(TASKS_PER_NODE="1(x999999)"), "has more than 65536 nodes or tasks"),
        (task(STEP_RESV_PORTS="12000"), "'12000' has 1 ports, but a node of this step has 2 tasks; start with srun --resv-ports=2"),
        (task(STEP_RESV_PORTS="ports"), "'ports' has 0 ports"),
        ({**TASK, "OMPI_COMM_WORLD_RANK": "0"}, "mpirun started this process (OMPI_COMM_WORLD_RANK is set), and does not say where"),
        ({**TASK, "PMI_RANK": "4", "PMI_SIZE": "6"}, "(PMI_RANK is set), and does not say where the others are; start with srun"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(environ, said):
    with pytest.raises(OptionError) as raised:
        found(environ)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_script_of_slurm_is_instance_0_of_nothing():
    for environ in (SCRIPT, FROM_INSIDE, SHELL):
        assert not membership.is_later_instance(environ) and not list(membership.ignored_others(environ))
        assert found(environ, "") == Cluster()


def test_tasks_without_the_flag_are_strangers():
    """One that is not task 0 was taken for a follower, whose run another instance would have found damaged."""
    assert not membership.is_later_instance(TASK, distributed=False)
    (line,) = membership.ignored_others(TASK)
    assert line.startswith("warning: srun started 3 tasks, and each of them trains alone; give --distributed")
    assert found(TASK, "") == Cluster()


def test_sruns_own_words_for_mpi_change_nothing():
    """As with --mpi=pmi2 and --mpi=pmix."""
    for words in ({"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_JOBID": "1.3", "SLURM_MPI_TYPE": "pmi2"}, {"PMIX_RANK": "2"}):
        assert found({**TASK, **words}) == found(TASK)
