"""examples/launch: what Slurm, torchrun and Kubernetes start works here, as far as it can without
them."""
import glob
import os
import re
import shlex
import subprocess
import unittest
import urllib.request

import documents
import harness
from harness import af_packet
from torch_trains import Torch

LAUNCH = os.path.join(harness.ROOT, "examples", "launch")
SECRET = "a-secret-that-these-ranks-share"
FIRST_ADDRESS = "10.77.1.1/16"
# Acts as Slurm's srun on one node; with several namespaces each rank gets its own.
SRUN = """#!/bin/bash
namespaces=($RANK_NAMESPACES)
for ((rank = 0; rank < SLURM_NTASKS; ++rank)); do
  enter=(env)
  if ((${#namespaces[@]})); then enter=(nsenter --net="${namespaces[rank]}"); fi
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "${enter[@]}" "$@" &
  ranks+=($!)
done
for rank in "${ranks[@]}"; do wait "$rank" || exit; done
"""


def namespace_path(descriptor):
    return f"/proc/{os.getpid()}/fd/{descriptor}"


class Addresses(harness.SystemTest):
    def address(self, first, **settings):
        path = os.path.join(self.place, "worker-address")
        with open(path, "w", encoding="ascii") as file:
            file.write(first + "\n")
        told = self.start("with-address", os.path.join(LAUNCH, "with-address"), path, "sh", "-c",
                          "echo $SLUICE_ADDRESS", **settings)
        self.assertEqual((told.wait(), told.err), (0, ""))
        return told.out.strip()

    def test_follow_the_first(self):
        self.assertEqual(self.address("10.0.1.8/16"), "10.0.1.8/16")
        self.assertEqual(self.address("10.0.1.8/16", SLURM_LOCALID=3), "10.0.1.11/16")
        self.assertEqual(self.address("10.255.255.254/8@10.0.0.1", LOCAL_RANK=2),
                         "11.0.0.0/8@10.0.0.1")
        self.assertEqual(self.address("10.0.1.255/16", OMPI_COMM_WORLD_LOCAL_RANK=1),
                         "10.0.2.0/16")


class Slurm:
    def start_batch(self, name, ranks, *program, namespaces=(), **settings):
        programs = os.path.join(self.place, "bin")
        os.makedirs(programs)
        with open(os.open(os.path.join(programs, "srun"), os.O_WRONLY | os.O_CREAT, 0o755), "w",
                  encoding="ascii") as file:
            file.write(SRUN)
        path = [programs, os.path.dirname(harness.program("sluice-aggregator")),
                os.environ["PATH"]]
        return self.start(name, "bash", os.path.join(LAUNCH, name), *program,
                          PATH=os.pathsep.join(path), SLURM_NTASKS=ranks, SLURM_JOB_ID=4711,
                          RANK_NAMESPACES=" ".join(map(namespace_path, namespaces)), **settings)


class OneNode(Slurm, harness.SystemTest):
    def test_a_job_has_a_daemon_of_its_own(self):
        job = self.start_batch("one-node.sbatch", 4, harness.program("first-program"))
        self.assertEqual(job.wait(), 0)
        self.assertEqual(job.out.count("the ranks' sum is 10"), 4)
        self.assertIn("job 0: formed, 4 ranks", job.err)
        self.leaves_nothing(re.search(r"vhost:(/tmp/sluice-\w+)/", job.err).group(1))

    def test_a_job_that_fails(self):
        job = self.start_batch("one-node.sbatch", 2, "sh", "-c",
                               "echo $SLUICE_AGGREGATORS; exit 3")
        self.assertEqual(job.wait(), 3)
        self.leaves_nothing(re.search(r"vhost:(/tmp/sluice-\w+)/", job.out).group(1))

    def leaves_nothing(self, place):
        self.assertFalse(os.path.exists(place))


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Cluster(Slurm, harness.NetworkTest):
    def test_ranks_have_addresses_of_their_own(self):
        self.make_network(workers=4, aggregators=2)
        self.write("worker-address", FIRST_ADDRESS)
        self.write(".sluice-secret", SECRET)
        daemons = [self.start_aggregator(shard, "--shard", shard, "--shards", 2,
                                         SLUICE_AGGREGATOR_SECRET=SECRET) for shard in range(2)]
        job = self.start_batch(
            "cluster.sbatch", 4, harness.program("first-program"),
            namespaces=[self.network.worker_namespace(rank) for rank in range(4)],
            HOME=self.place, WITH_ADDRESS=os.path.join(LAUNCH, "with-address"),
            WORKER_ADDRESS=os.path.join(self.place, "worker-address"),
            SLUICE_AGGREGATORS=self.network.aggregators(), SLUICE_PORT=af_packet.DEVICE)
        self.assertEqual(job.wait(), 0)
        self.assertEqual(job.out.count("the ranks' sum is 10"), 4)
        for daemon in daemons:
            daemon.wait_to_say("job 4711: formed, 4 ranks")
            self.ends_on_signal(daemon)

    def write(self, name, text):
        path = os.path.join(self.place, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(text + "\n")


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Torchrun(Torch, harness.NetworkTest):
    """Two nodes, of two ranks each."""

    PROGRAM = ("import sluice_torch, torch, torch.distributed as dist\n"
               "dist.init_process_group('sluice')\n"
               "sum = torch.ones(1000)\n"
               "dist.all_reduce(sum)\n"
               # At once, since torchrun's ranks share one output.
               "print(f'rank {dist.get_rank()} has {int(sum[0])}\\n', end='', flush=True)\n")

    def test_as_documented(self):
        if not harness.torchrun_works():
            self.skipTest(harness.NO_TORCHRUN)
        self.make_network(workers=2, aggregators=1)
        daemon = self.start_aggregator(0)
        with open(os.path.join(self.place, "train.py"), "w", encoding="ascii") as file:
            file.write(self.PROGRAM)
        export, launch = documents.commands("docs/deploy.md", "export SLUICE_AGGREGATORS=10.0.0.9")
        export = export.replace("10.0.0.9", daemon.address).replace("iface=eth1",
                                                                    f"iface={af_packet.PORT}")
        launch = launch.replace("python3 train.py", shlex.join([harness.DEBIAN_PYTHON, "train.py"]))
        launch = launch.replace("examples/launch", LAUNCH)
        nodes = []
        for node in range(2):
            self.let_kernel_speak(node)
            addresses = os.path.join(self.place, f"worker-address-{node}")
            with open(addresses, "w", encoding="ascii") as file:
                file.write(f"10.77.{1 + node}.1/16\n")
            typed = "\n".join([f"cd {self.place}", export,
                               launch.replace("/etc/sluice/worker-address", addresses)])
            nodes.append(self.start(f"node{node}", "bash", "-euc", typed, NODE=node,
                                    before_exec=self._on(self.network.worker_namespace(node))))
        self.all_end_well(nodes)
        said = "".join(node.out for node in nodes)
        for rank in range(4):
            self.assertIn(f"rank {rank} has 4", said)
        self.ends_on_signal(daemon)

    def let_kernel_speak(self, node):
        """A port for PyTorch's store."""
        harness.linux.enter_network_namespace(self.network.worker_namespace(node))
        af_packet.ip("address", "add", f"10.1.0.{1 + node}/16", "dev", af_packet.PORT)
        af_packet.ip("link", "set", "lo", "up")
        harness.linux.enter_network_namespace(self.network.switch)


class Kubernetes(harness.SystemTest):
    def containers(self, name):
        """Every container in the file, with its pod."""
        try:
            import yaml
        except ImportError:
            self.skipTest("this Python has no yaml")
        with open(os.path.join(LAUNCH, "kubernetes", name), encoding="utf-8") as file:
            for item in yaml.safe_load_all(file):
                if item["kind"] != "Secret":
                    pod = item["spec"]["template"]["spec"]
                    yield from ((pod, container) for container in pod["containers"])

    def test_all_files_are_known_here(self):
        files = glob.glob(os.path.join(LAUNCH, "kubernetes", "*"))
        self.assertEqual(sorted(map(os.path.basename, files)),
                         ["aggregator.yaml", "network.yaml", "training.yaml"])

    def test_what_is_mounted_is_there(self):
        for name in ("aggregator.yaml", "network.yaml", "training.yaml"):
            for pod, container in self.containers(name):
                volumes = {volume["name"] for volume in pod["volumes"]}
                self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)

    def test_daemons_settings(self):
        for name, origin in (("aggregator.yaml", "vhost-dir"), ("network.yaml", "address")):
            (_, container), = self.containers(name)
            printed = self.start("print", harness.program("sluice-aggregator"), *container["args"],
                                 "--print-config")
            self.assertEqual(printed.wait(), 0, printed.err)
            self.assertRegex(printed.out, rf"{origin} = .*# flag --{origin}")

    def test_what_probes_ask_is_answered(self):
        (_, container), = self.containers("aggregator.yaml")
        port = str(harness.free_tcp_port())
        told = str(container["ports"][0]["containerPort"])
        arguments = [argument.replace(told, port).replace("/run/sluice", self.place)
                     for argument in container["args"]]
        self.assertIn(f"0.0.0.0:{port}", arguments)
        daemon = self.start("daemon", harness.program("sluice-aggregator"), *arguments)
        daemon.wait_to_say(harness.READY)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            self.assertEqual(asked["port"], container["ports"][0]["name"])
            harness.wait_until(lambda path=asked["path"]: self.answers(port, path), probe)
        self.ends_on_signal(daemon)

    @staticmethod
    def answers(port, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def test_ranks_variables_exist(self):
        with open(os.path.join(harness.ROOT, "docs/configuration.md"), encoding="utf-8") as page:
            known = set(re.findall(r"^\| `(SLUICE_\w+)`", page.read(), re.M))
        (_, container), = self.containers("training.yaml")
        self.assertLessEqual({variable["name"] for variable in container["env"]}, known)


class Scripts(harness.SystemTest):
    def test_shells_have_nothing_to_say(self):
        scripts = [path for path in glob.glob(os.path.join(LAUNCH, "*")) if os.path.isfile(path)]
        self.assertEqual(len(scripts), 3)
        for path in scripts:
            subprocess.run(["bash", "-n", path], check=True)
        try:
            done = subprocess.run(["shellcheck", *scripts], check=False, text=True,
                                  capture_output=True)
        except FileNotFoundError:
            self.skipTest("needs shellcheck")
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    harness.main()
