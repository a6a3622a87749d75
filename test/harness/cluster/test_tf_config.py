"""TF_CONFIG as people, mpirun and Kubeflow's operator give it."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml
from slurm_tasks import TASK, found

from base import plugins
from base.errors import OptionError
from harness.cluster import membership
from harness.commands import cli

PAGE = (plugins.ROOT / "docs" / "schedulers.md").read_text()
HOSTS = ["h0:2222", "h1:2222", "h2:2222"]
KINDS = {"Chief": "chief", "Master": "master", "Worker": "worker"}  # of replicas, as the operator calls their jobs


def environ(cluster: object, task: object = None, **others: str) -> dict[str, str]:
    """An environment with a TF_CONFIG."""
    content = {"cluster": cluster} if task is None else {"cluster": cluster, "task": task}
    return {"TF_CONFIG": json.dumps({**content, "environment": "cloud"}), **others}


def by_operator(manifest: dict, kind: str, index: int) -> dict[str, object]:
    """What Kubeflow's operator writes into a replica of a TFJob."""
    meta, replicas = manifest["metadata"], manifest["spec"]["tfReplicaSpecs"]
    (port,) = replicas[kind]["template"]["spec"]["containers"][0]["ports"]
    cluster = {
        KINDS[each]: [
            f"{meta['name']}-{KINDS[each]}-{k}.{meta['namespace']}.svc:{port['containerPort']}"
            for k in range(replica["replicas"])
        ]
        for each, replica in replicas.items()
    }
    return {"cluster": cluster, "task": {"type": KINDS[kind], "index": index}, "environment": "cloud"}


def test_the_manifest_of_the_page_starts_a_group():
    manifest = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)[1])
    shown = json.loads(re.search(r"^```json\n(.*?)^```$", PAGE, re.M | re.S)[1])
    assert shown == by_operator(manifest, "Worker", 1)
    replicas = manifest["spec"]["tfReplicaSpecs"]
    places = [(kind, k) for kind, replica in replicas.items() for k in range(replica["replicas"])]
    assert places == [("Chief", 0), ("Worker", 0), ("Worker", 1)]
    for instance, (kind, k) in enumerate(places):
        given = {"TF_CONFIG": json.dumps(by_operator(manifest, kind, k))}
        cluster = found(given)
        assert (cluster.instance, cluster.size) == (instance, 3) and membership.is_later_instance(given) == (instance > 0)
        assert cluster.addresses[0] == "quickstart-chief-0.research.svc:2222"
        container = replicas[kind]["template"]["spec"]["containers"][0]
        assert container["name"] == "tensorflow"  # by which the operator finds it
        script, *words = container["args"]
        options = cli.parse(words, script, environ={}).options
        assert options.training.distributed and options.logging.autoresume and script == "train"


def test_a_job_of_workers_alone_is_led_by_the_first():
    given = [environ({"worker": HOSTS}, {"type": "worker", "index": k}) for k in range(3)]
    assert [found(each).instance for each in given] == [0, 1, 2]
    assert [membership.is_later_instance(each) for each in given] == [False, True, True]


def test_a_master_is_a_chief():
    jobs = {"master": HOSTS[:1], "worker": HOSTS[1:]}
    each = [environ(jobs, {"type": kind, "index": k}) for kind, k in (("master", 0), ("worker", 0), ("worker", 1))]
    assert [found(given).instance for given in each] == [0, 1, 2]
    assert [membership.is_later_instance(given) for given in each] == [False, True, True]
    assert found(environ({"chief": HOSTS[:1]}, {"type": "chief", "index": 0})).size == 1


OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "2"}  # of OpenMPI 5; 4 sets PMIX_RANK too


@pytest.mark.parametrize(
    "launcher",
    [OPENMPI, {"PMI_RANK": "2", "PMI_SIZE": "3"}, {"PMI_RANK": "2"}, {"PMIX_RANK": "2"}, TASK],
    ids=["OpenMPI", "MPICH", "without size", "PMIx", "Slurm"],
)
def test_a_launcher_says_which_worker_this_is(launcher):
    given = environ({"worker": HOSTS}, **launcher)
    assert found(given).instance == 2 and membership.is_later_instance(given)
    assert found(environ({"chief": HOSTS[:1], "worker": HOSTS[1:]}, **launcher)).instance == 2
    indexed = environ({"worker": HOSTS}, {"type": "worker", "index": 1}, **launcher)
    assert found(indexed).instance == (2 if launcher is OPENMPI else 1)


def test_an_mpirun_inside_of_slurm_goes_before_its_helpers_variables():
    given = environ({"worker": HOSTS}, **{**TASK, **OPENMPI, "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"})
    assert found(given).instance == 0 and not membership.is_later_instance(given)
    given = environ({"worker": HOSTS}, **TASK, PMI_RANK="1", PMI_SIZE="3")  # of MPICH, whose helpers srun starts
    assert found(given).instance == 1 and membership.is_later_instance(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (environ({"worker": HOSTS, "ps": ["p:1"]}), "TF_CONFIG has the jobs ps, which cannot be used: gradients are all-reduced"),
        (environ({"chief": HOSTS[:1]}, {"type": "evaluator", "index": 0}), "has the task evaluator, which cannot be used: the"),
        (environ({"worker": HOSTS}, {"type": "ps", "index": 0}), "has the task ps, which cannot be used"),
        (environ({"worker": HOSTS, "extra": HOSTS}), "has the jobs extra: only cluster.worker is known"),
        (environ({"chief": HOSTS[:2], "worker": HOSTS}), "TF_CONFIG's cluster.chief has 2 leaders, but must have one"),
        (environ({"chief": ["a:1"], "master": ["b:1"]}), "cluster.chief and cluster.master has 2 leaders"),
        (environ({"worker": ["a\0:1", "b:2"]}, {"type": "worker", "index": 0}), "'a\\x00:1' is not host:port with a port"),
        (environ({"chief": ["a:1"], "worker": "b:1"}), "has no list cluster.worker"),
        (environ({"chief": ["a:1"], "worker": ["a:1"]}), "cluster.chief and worker has a:1 twice"),
        (environ({"worker": HOSTS}, {"type": "chief", "index": 0}), "but is {\"type\": \"chief\", \"index\": 0}: cluster has no such"),
        (environ({"chief": ["a:1"], "worker": HOSTS}, {"type": "chief", "index": 1}), "task.index is 1, but must be 0: there is one"),
        (environ({"chief": ["a:1"], "worker": HOSTS}, {"type": "worker", "index": 3}), "a whole number from 0 to 2: there are 3 w"),
        (environ({"worker": HOSTS}), "task.index nor OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID says which worker this is"),
        (environ({"worker": HOSTS}, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4"),
         "OMPI_COMM_WORLD_SIZE is 4, but TF_CONFIG names 3 workers: start as many processes as it names"),
        (environ({"worker": HOSTS}, PMI_RANK="1", PMI_SIZE="2"), "PMI_SIZE is 2, but TF_CONFIG names 3 workers"),
        (environ({"worker": HOSTS[:2]}, **TASK), "SLURM_STEP_NUM_TASKS is 3, but TF_CONFIG names 2 workers"),
        (environ({"worker": HOSTS}, PMI_RANK="3"), "PMI_RANK is 3, but must be a whole number from 0 to 2"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun started this process (PMI_RANK is set), and does not say where the others"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(given, said):
    with pytest.raises(OptionError) as raised:
        found(given)
    assert said in str(raised.value).splitlines()[0]


def test_what_mpich_started_is_not_alone_without_a_word():
    (line,) = membership.ignored_others({"PMI_RANK": "0", "PMI_SIZE": "3"})
    assert line.startswith("warning: mpirun started 3 processes, and each of them trains alone")
    assert not list(membership.ignored_others({"PMI_RANK": "0", "PMI_SIZE": "1"}))


def test_the_page_names_every_variable_that_is_read():
    code = "".join(path.read_text() for path in (plugins.ROOT / "harness" / "cluster").glob("*.py"))
    read = set(re.findall(r'"((?:SLURM|OMPI|PMI|PMIX)_[A-Z_]+[A-Z])"', code))
    stand_ins = {"SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"}
    assert len(read) > 12 and read - stand_ins == {name for name in read - stand_ins if f"`{name}`" in PAGE}


def test_the_job_script_of_the_page_goes_on_when_it_was_told_to_leave():
    script = re.search(r"^```\n(#!/bin/bash.*?)^```$", PAGE, re.M | re.S)[1]
    (call,) = re.findall(r"^srun .*\\\n +python train.py (.*)$", script, re.M)
    options = cli.parse(shlex.split(call), "train", environ={}).options
    assert options.training.distributed and options.logging.autoresume and "-eq 138" in script
