"""The instances of a run: from TF_CONFIG as people, mpirun, Kubernetes and Kubeflow write it, and from Slurm 22.05's
variables.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shlex

import pytest
import yaml
from slurm_tasks import OF_STEPS, TASK, found, task

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.harness.run import cli, membership, slurm
from cnn_harness.harness.run.cluster import Cluster

PAGE = (plugins.ROOT / "docs" / "schedulers.md").read_text()
MANIFESTS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
HOSTS = ["h0:2222", "h1:2222", "h2:2222"]
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "2"}  # of OpenMPI 5; 4 sets PMIX_RANK too


def environ(cluster: object, task: object = None, **others: str) -> dict[str, str]:
    """Return an environment with a TF_CONFIG."""
    content = {"cluster": cluster} if task is None else {"cluster": cluster, "task": task}
    return {"TF_CONFIG": json.dumps({**content, "environment": "cloud"}), **others}


def by_kubernetes(container: dict, index: int) -> dict[str, str]:
    """Return the environment of a pod of an Indexed Job; $(NAME) refers to a variable listed earlier."""
    given: dict[str, str] = {}
    for each in container["env"]:
        if "value" in each:
            given[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], each["value"])
        else:
            assert "job-completion-index" in each["valueFrom"]["fieldRef"]["fieldPath"]
            given[each["name"]] = str(index)
    return given


def test_manifest_in_docs_starts_group():
    service, job = yaml.safe_load_all(MANIFESTS[0])
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 3
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"]
    (port,) = pod["containers"][0]["ports"]
    check_container(pod["containers"][0], [f"{name}-{k}.{pod['subdomain']}:{port['containerPort']}" for k in range(3)])


def check_container(container: dict, addresses: list[str]) -> None:
    """Check that the containers with this description train together."""
    for instance in range(len(addresses)):
        given = by_kubernetes(container, instance)
        cluster = found(given)
        assert cluster.addresses == tuple(addresses)
        assert cluster.instance == instance and membership.is_later_instance(given) == (instance > 0)
    script, *words = container["args"]
    options = cli.parse(words, script, environ={}).options
    assert options.training.distributed and options.logging.autoresume and script == "train"


def test_network_policy_in_docs_selects_job():
    policy, (_, job) = yaml.safe_load(MANIFESTS[1])["spec"], yaml.safe_load_all(MANIFESTS[0])
    selected = {"matchLabels": {"batch.kubernetes.io/job-name": job["metadata"]["name"]}}
    (rule,) = policy["ingress"]
    assert policy["podSelector"] == selected and rule["from"] == [{"podSelector": selected}]
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert [each["port"] for each in rule["ports"]] == [each["containerPort"] for each in container["ports"]]


def test_train_job_in_docs_starts_group():
    """The JobSet of a TrainJob has one replicated job; its pods have the names <job>-<replicated job>-0-<index>."""
    runtime, train_job = yaml.safe_load_all(MANIFESTS[2])
    trainer, name = train_job["spec"]["trainer"], train_job["metadata"]["name"]
    assert train_job["apiVersion"] == runtime["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    reference = train_job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert (
        trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] and replicated["name"] == container["name"] == "node"
    )
    pods = [f"{name}-node-0-{k}.{name}:{port['containerPort']}" for k in range(trainer["numNodes"])]
    check_container(trainer, pods)


@pytest.mark.parametrize("leader", ["worker", "chief", "master"])
def test_leader_is_instance_0(leader):
    jobs = {"worker": HOSTS} if leader == "worker" else {leader: HOSTS[:1], "worker": HOSTS[1:]}
    tasks = [(job, k) for job, hosts in jobs.items() for k in range(len(hosts))]
    each = [environ(jobs, {"type": kind, "index": k}) for kind, k in tasks]
    assert [found(given).instance for given in each] == [0, 1, 2]
    assert [membership.is_later_instance(given) for given in each] == [False, True, True]


@pytest.mark.parametrize(
    "launcher",
    [OPENMPI, {"PMI_RANK": "2", "PMI_SIZE": "3"}, {"PMI_RANK": "2"}, {"PMIX_RANK": "2"}, TASK],
    ids=["OpenMPI", "MPICH", "without size", "PMIx", "Slurm"],
)
def test_launcher_sets_worker_index(launcher):
    given = environ({"worker": HOSTS}, **launcher)
    assert found(given).instance == 2 and membership.is_later_instance(given)
    assert found(environ({"chief": HOSTS[:1], "worker": HOSTS[1:]}, **launcher)).instance == 2
    indexed = environ({"worker": HOSTS}, {"type": "worker", "index": 1}, **launcher)
    assert found(indexed).instance == (2 if launcher is OPENMPI else 1)


# the batch script of the job of TASK
SCRIPT = {
    **task(**{name.removeprefix("SLURM_"): None for name in (*OF_STEPS, "SLURM_DISTRIBUTION")}, PROCID=0, NODEID=0),
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
# salloc's shell with LaunchParameters=use_interactive_step
SHELL = task(STEP_ID=0xFFFFFFFA, PROCID=0, NODEID=0, NTASKS=1, TASKS_PER_NODE=1, STEP_NODELIST="n1")
WORKER = {"type": "worker", "index": 0}
POPDIST = {"POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_LOCAL_REPLICAS": "2", "POPDIST_REPLICA_INDEX_OFFSET": "0"}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "TF_CONFIG"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG"),
        ({"TF_CONFIG": "[]"}, "cluster.worker"),
        (environ({"worker": HOSTS, "ps": ["p:1"]}), "ps"),
        (environ({"chief": HOSTS[:2], "worker": HOSTS}), "chief"),
        (environ({"worker": ["a\0:1", "b:2"]}, WORKER), "a\\x00:1"),
        (environ({"worker": ["a:70000"]}, WORKER), "a:70000"),
        (environ({"chief": ["a:1"], "worker": ["a:1"]}), "a:1 twice"),
        (environ({"chief": ["a:1"], "worker": HOSTS}, {"type": "worker", "index": 3}), "task.index is 3"),
        (environ({"worker": HOSTS}, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4"), "OMPI_COMM_WORLD_SIZE is 4"),
        (environ({"worker": HOSTS[:2]}, **TASK), "SLURM_STEP_NUM_TASKS is 3"),
        (SCRIPT, "srun"),
        (task(STEP_NODELIST="n[1-3]"), "SLURM_STEP_NODELIST has 3 nodes, SLURM_STEP_TASKS_PER_NODE has 3 tasks on 2"),
        (task(PROCID=3), "SLURM_PROCID is 3"),
        (task(DISTRIBUTION="cyclic"), "--distribution=block"),
        (task(STEP_NODELIST="n[1-2"), "n[1-2"),
        (task(STEP_NODELIST="n[1-999999999]"), "n[1-999999999]"),
        (task(TASKS_PER_NODE="2(x"), "2(x"),
        (task(STEP_RESV_PORTS="ports"), "'ports'"),
        ({**TASK, "OMPI_COMM_WORLD_RANK": "0"}, "mpirun"),
        (POPDIST, "--distributed cannot be combined with poprun"),
        (environ({"worker": HOSTS}, WORKER, words="--syncs-per-epoch 2"), "--syncs-per-epoch 2"),
        ({**POPDIST, "POPDIST_NUM_TOTAL_REPLICAS": "x", "words": ""}, "POPDIST_NUM_TOTAL_REPLICAS is 'x'"),
        ({**POPDIST, "POPDIST_NUM_LOCAL_REPLICAS": "4", "POPDIST_NUM_IPUS_PER_REPLICA": "2", "words": ""}, "--shards is 1"),
    ],
)  # fmt: skip
def test_inconsistent_settings_are_one_line(given, part):
    """`words` replace --distributed in the call."""
    with pytest.raises(OptionError) as raised:
        found({name: value for name, value in given.items() if name != "words"}, given.get("words", "--distributed"))
    assert part in str(raised.value).splitlines()[0]


def test_tasks_of_step_are_instances():
    cluster = found(TASK)
    assert cluster.addresses == ("n1:26001", "n1:26002", "n2:26001")
    assert (cluster.instance, cluster.size, cluster.neighbours, cluster.source) == (2, 3, 1, "Slurm")
    assert membership.is_later_instance(TASK) and not membership.is_later_instance(task(PROCID=0))
    older = {"STEP_NODELIST": None, "STEP_NUM_TASKS": None, "STEP_TASKS_PER_NODE": None}
    assert found(task(**older)) == cluster
    for words in ({"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_JOBID": "1.3", "SLURM_MPI_TYPE": "pmi2"}, {"PMIX_RANK": "2"}):
        assert found({**TASK, **words}) == cluster  # --mpi=pmi2, --mpi=pmix
    alone = found(task(NTASKS=1, TASKS_PER_NODE=1, STEP_NODELIST="n2", NODEID=0, PROCID=0))
    assert (alone.size, alone.instance, alone.addresses) == (1, 0, ())


# SLURM_DISTRIBUTION, tasks per node, and (SLURM_NODEID, SLURM_LOCALID) of each task, as printed by srun's tasks
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
def test_tasks_match_placement_by_srun(distribution, counts, places):
    each = [
        found(
            task(DISTRIBUTION=distribution, TASKS_PER_NODE=counts, NTASKS=len(places), PROCID=rank, NODEID=node, LOCALID=local,
                 STEP_RESV_PORTS="26005-26009")
        )
        for rank, (node, local) in enumerate(places)
    ]  # fmt: skip
    assert [cluster.instance for cluster in each] == list(range(len(places)))
    assert {cluster.addresses for cluster in each} == {tuple(f"n{node + 1}:{26005 + local}" for node, local in places)}


def shortened(words: list[str], rng: random.Random) -> str:
    """Write numbers in order, as Slurm shortens them; a few neighbours stay separate."""
    runs: list[list[str]] = []
    for word in words:
        if runs and int(word) == int(runs[-1][-1]) + 1 and len(word) == len(runs[-1][0]) and rng.random() < 0.9:
            runs[-1].append(word)
        else:
            runs.append([word])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def test_shortened_host_list_expands_exactly():
    """Names have one or two numbers, with or without leading zeros."""
    assert slurm.expanded("node[01-03,07],gpu1") == ["node01", "node02", "node03", "node07", "gpu1"]
    assert slurm.expanded("n[9-11]-ib") == ["n9-ib", "n10-ib", "n11-ib"]
    assert slurm.per_node("2(x3),1") == [2, 2, 2, 1]
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
        assert slurm.expanded(",".join(written)) == names, written


def test_processes_without_distributed_are_independent():
    """A process other than task 0 was taken for a follower, and another instance reported its run as damaged."""
    for given, count in ((TASK, 3), ({"PMI_RANK": "0", "PMI_SIZE": "3"}, 3), (environ({"worker": HOSTS[:2]}), 2)):
        assert not membership.is_later_instance(given, distributed=False)
        (line,) = membership.ignored_others(given)
        assert f"{count} processes" in line and "--distributed" in line
        assert found(given, "") == Cluster()
    for given in (SCRIPT, SHELL, {"PMI_RANK": "0", "PMI_SIZE": "1"}):
        assert not membership.is_later_instance(given) and not list(membership.ignored_others(given))


def test_job_script_in_docs_resumes_after_signal():
    script = re.search(r"^```\n(#!/bin/bash.*?)^```$", PAGE, re.M | re.S)[1]
    (call,) = re.findall(r"^srun .*\\\n +python train.py (.*)$", script, re.M)
    options = cli.parse(shlex.split(call), "train", environ={}).options
    assert options.training.distributed and options.logging.autoresume and "-eq 138" in script
