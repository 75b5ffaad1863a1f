"""Debian packages of this tree, from a bare node to a job that runs, and back: built, installed in
a root of their own with its own systemd, served from as docs/deploy.md says, and purged."""
import glob
import json
import os
import re
import shutil
import subprocess
import unittest

import debian
import documents
import harness

BOOT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "boot.sh")
PACKAGES = ["libsluice-dev", "libsluice0", "python3-sluice", "python3-sluice-torch",
            "sluice-aggregator", "sluice-mpi", "sluice-tools"]
HEAVY = re.compile(r"torch|mpi\b|openmpi|mpich|cuda")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SETTING_UP = 900  # seconds, at most
# A bare node; the trainer is a person's, with a login of their own.
NODE = ["systemd-sysv", "dbus", "login"]
NODES_OWN_FILES = re.compile(r"/(proc|sys|dev|tmp|packages|var/(log|cache|lib/(apt|dpkg)))/")


def output_of(*command, seconds=SETTING_UP, **settings):
    done = subprocess.run(
        command, text=True, check=False, timeout=seconds, env={**os.environ, **settings},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


@unittest.skipUnless(os.geteuid() == 0, "needs root: a root directory with a systemd of its own")
class Packages(harness.SystemTest):
    @classmethod
    def setUpClass(cls):
        """Builds at a fixed path, so that ccache recognizes the files."""
        cls.out = os.path.join(harness.build, "packages")
        output_of(os.path.join(harness.ROOT, "scripts", "package"), cls.out, seconds=3000)

    def package(self, name):
        path, = glob.glob(os.path.join(self.out, f"{name}_*.deb"))
        return path

    @staticmethod
    def build():
        return output_of(os.path.join(harness.ROOT, "scripts", "lib", "build-id")).strip()

    def field(self, name, field):
        return output_of("dpkg-deb", "--field", self.package(name), field).strip()

    def test_all_are_built_in_the_version_of_the_source(self):
        names = {os.path.basename(path).split("_")[0]
                 for path in glob.glob(os.path.join(self.out, "*.deb"))}
        self.assertEqual(sorted(name for name in names if not name.endswith("-dbgsym")), PACKAGES)
        with open(os.path.join(harness.ROOT, "meson.build"), encoding="utf-8") as file:
            version = re.search(r"version: '(.*)'", file.read())[1]
        build = output_of(os.path.join(harness.ROOT, "scripts", "lib", "build-id"),
                          "--package").strip()
        self.assertEqual({self.field(name, "Version") for name in PACKAGES}, {version + build})
        self.assertRegex(build, r"^\+git\d{14}\.")  # newer than that of every earlier commit

    def test_pages_lead_to_each_other(self):
        """All links of the installed ones lead on, except those to what a checkout alone has."""
        place = self.directory("unpacked")
        output_of("dpkg-deb", "--extract", self.package("sluice-aggregator"), place)
        docs = os.path.join(place, "usr", "share", "doc", "sluice-aggregator")
        pages = glob.glob(os.path.join(docs, "*.md"))
        self.assertGreater(len(pages), 20)
        lost = set()
        for page in pages:
            for _, target in documents.links(page):
                file = target.partition("#")[0]
                if not os.path.exists(os.path.join(docs, file)):
                    lost.add(file)
        of_checkout = {file for file in lost if not file.endswith(".md") and any(
            os.path.exists(os.path.join(harness.ROOT, place, file)) for place in (".", "docs"))}
        self.assertEqual(lost - of_checkout, {"CONTRIBUTING.md", "../CONTRIBUTING.md",
                                              "../scripts/lib/README.md"})

    def test_lintian_has_nothing_to_say(self):
        changes, = glob.glob(os.path.join(self.out, "*.changes"))
        self.assertEqual(output_of("lintian", "--allow-root", "--fail-on", "error", changes), "")

    def test_only_those_for_pytorch_and_mpi_depend_on_them(self):
        heavy = {name for name in PACKAGES
                 if HEAVY.search(self.field(name, "Depends").replace(name, ""))}
        self.assertEqual(heavy, {"python3-sluice-torch", "sluice-mpi"})

    # -------------------------------------------------------------------------------- on a node
    def make_root(self, *packages):
        self.root = self.directory("root")
        output_of("mmdebstrap", "--quiet", "--variant=minbase", "--include=" + ",".join(packages),
                  debian.codename(), self.root, debian.mirror())
        os.mkdir(os.path.join(self.root, "packages"))
        for name in PACKAGES:
            shutil.copy(self.package(name), os.path.join(self.root, "packages"))

    def make_node(self):
        self.addCleanup(self.remove_node)
        self.make_root(*NODE)
        self.in_root("useradd --create-home alice", "apt-get update")
        # There is no console for logins.
        self.in_root("systemctl mask console-getty.service")

    def in_root(self, *lines):
        """Before it is booted, so that it has this machine's network."""
        return output_of(*self.inside_root("bash", "-euxc", "\n".join(["cd /packages", *lines])),
                         DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")

    def inside_root(self, *command, user="root"):
        mounts = (f"cd {self.root}; mount -t proc proc proc; mount -t sysfs -o ro sysfs sys; "
                  "mount --rbind /dev dev")
        return ["unshare", "--mount", "bash", "-euc",
                f'{mounts}; exec chroot --userspec={user} . "$@"', "bash", *command]

    def boot(self):
        group = os.path.basename(self.place)
        self.machine = self.start("machine", BOOT, self.root, group)

        def is_up():
            self.assertTrue(self.machine.is_running(), self.machine.report())
            return self.first_process() and self.asked("systemctl is-system-running --wait") in (
                "running", "degraded")
        harness.wait_until(is_up, "systemd boots")

    def first_process(self):
        pid = self.machine.popen.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return next(iter(file.read().split()), None)

    def inside(self, line):
        return ["nsenter", "--target", self.first_process(), "--mount", "--pid", "--uts", "--ipc",
                "--net", "--cgroup", "--root", "--wd", "env", "-i", PATH,
                "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "bash", "-euc", line]

    def typed(self, line):
        return output_of(*self.inside(line), seconds=harness.TIME_LIMIT)

    def asked(self, line):
        """The same, whatever its status."""
        return subprocess.run(self.inside(line), text=True, check=False, capture_output=True,
                              timeout=harness.TIME_LIMIT).stdout.strip()

    def remove_node(self):
        for process in self.processes:
            process.kill()
        for hierarchy in ("", "systemd", "unified"):
            group = os.path.join("/sys/fs/cgroup", hierarchy, os.path.basename(self.place))
            for place, _, _ in os.walk(group, topdown=False):
                harness.wait_until(lambda place=place: self.is_empty(place), "its processes end")
                os.rmdir(place)

    @staticmethod
    def is_empty(group):
        with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
            return not file.read()

    def packages_of_node(self):
        return set(output_of("chroot", self.root, "dpkg-query", "--show",
                             "--showformat=${Package}\n").split())

    def is_active(self, unit):
        return self.asked(f"systemctl is-active {unit}") == "active"

    def property(self, unit, name):
        return self.asked(f"systemctl show --value --property {name} {unit}")

    def test_from_a_bare_node_to_a_job_and_back(self):
        install, start, admit, run = documents.commands("docs/deploy.md", "apt-get install")
        self.make_node()
        before = self.packages_of_node()
        self.in_root(install.replace("install", "install --yes --no-install-recommends"))
        new = self.packages_of_node() - before
        self.assertEqual([name for name in new if HEAVY.search(name)], [])
        self.in_root("apt-get install --simulate ./*.deb")
        self.boot()

        # An installation starts nothing.
        self.assertFalse(self.is_active("sluice-aggregator"))
        self.typed(start)
        self.assertTrue(self.is_active("sluice-aggregator"))
        self.assertEqual(self.property("sluice-aggregator", "StatusText"), "0 jobs")
        self.typed(admit)
        self.alice_runs(run)

        self.is_started_again_after_a_crash()
        self.alice_runs(run)
        self.is_restarted_under_a_job(run)
        self.reloads()
        self.a_second_daemon_serves(run)
        self.wrong_settings_end_it()
        self.is_purged(before)

    def alice_runs(self, job):
        """A job of two ranks; it is shorter, as the reader chooses the time."""
        job = job.replace("sluice-perf", "sluice-perf -b 1M -e 1M -n 1 -w 0")
        said = self.typed(f"runuser --login alice --command '{job}'")
        self.assertEqual(said.count("Avg bus bandwidth"), 1, said)  # rank 0 tells

    def is_started_again_after_a_crash(self):
        self.typed("systemctl kill --signal KILL sluice-aggregator")
        harness.wait_until(lambda: self.property("sluice-aggregator", "NRestarts") == "1"
                           and self.is_active("sluice-aggregator"), "systemd starts it again")

    def is_restarted_under_a_job(self, job):
        """The job's ranks wait for the new daemon, and continue."""
        job = job.replace("sluice-perf", "sluice-perf -b 1M -e 1M -n 3000 -w 0")
        self.typed(f"runuser --login alice --command '{job}' > /tmp/job 2>&1 & echo begun")
        harness.wait_until(lambda: "active" in self.asked("sluice-ctl jobs"), "the job runs")
        for tool in ("sluice-ctl", "sluice-nic", "sluice-top"):
            self.assertRegex(self.asked(tool + " --version"), rf"^{tool} \S+ \(build \S+\)$")
            self.assertIn(f"(build {self.build()})", self.asked(tool + " --version"))
        self.typed("systemctl restart sluice-aggregator")
        harness.wait_until(lambda: "Avg bus bandwidth" in self.asked("cat /tmp/job"),
                           "the job ends well")
        said = self.asked("journalctl --unit sluice-aggregator")
        self.assertIn("all 2 ranks were told", said)
        self.assertIn("resumed with its progress", said)
        self.typed("rm /tmp/job")

    def reloads(self):
        self.typed("systemctl reload sluice-aggregator")
        harness.wait_until(lambda: "reload: no change" in self.asked(
            "journalctl --unit sluice-aggregator"), "it reloads")
        self.assertTrue(self.is_active("sluice-aggregator"))

    def a_second_daemon_serves(self, run):
        self.typed("sed s,/run/sluice/aggregator,/run/sluice/second,"
                   " /etc/sluice/aggregator.conf > /etc/sluice/second.conf")
        self.typed("systemctl start sluice-aggregator@second")
        self.alice_runs(run.replace("/aggregator", "/second"))

    def wrong_settings_end_it(self):
        self.typed("echo 'lanes = none' > /etc/sluice/wrong.conf")
        self.asked("systemctl start sluice-aggregator@wrong")
        self.assertEqual(self.property("sluice-aggregator@wrong", "ExecMainStatus"), "2")
        self.assertEqual(self.property("sluice-aggregator@wrong", "NRestarts"), "0")
        self.typed("rm /etc/sluice/wrong.conf")

    def is_purged(self, before):
        """Two daemons run, and end in order."""
        self.typed("rm /etc/sluice/second.conf")
        # Does not keep packages that the node's own packages only suggest.
        self.typed("apt-get purge --yes --auto-remove -o APT::AutoRemove::SuggestsImportant=false"
                   " -o APT::AutoRemove::RecommendsImportant=false 'sluice-*'")
        for unit in ("sluice-aggregator", "sluice-aggregator@second"):
            self.assertIn("counters at exit", self.asked(f"journalctl --unit {unit}"))
        self.assertEqual(self.asked("readlink /proc/[0-9]*/exe | grep /bin/sluice-"), "")
        self.assertEqual(self.packages_of_node(), before)
        found = self.asked("find / -name '*sluice*'").splitlines()
        self.assertEqual([path for path in found if not NODES_OWN_FILES.match(path)], [])

    # ------------------------------------------------------------------------------ in a container
    def test_image_of_the_recipe_serves(self):
        """There is no registry here, so its commands are run in a bare Debian."""
        with open(os.path.join(harness.ROOT, "configs", "Containerfile"), encoding="utf-8") as file:
            steps = file.read().replace("\\\n", "").split("\n")
        image = steps[1 + max(i for i, step in enumerate(steps) if step.startswith("FROM ")):]
        said = {step.split()[0]: step.split(maxsplit=1)[1] for step in image
                if step and not step.startswith("#")}
        self.make_root("ca-certificates")
        self.in_root(*(re.sub(r"^RUN (--mount=\S+ )?", "", step) for step in image
                       if step.startswith("RUN ")))
        self.assertFalse(os.path.exists(os.path.join(self.root, "usr/bin/systemctl")))
        command = json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"])
        daemon = self.start("sluice-aggregator", *self.inside_root(
            "env", "-i", PATH, *command, user=said["USER"]))
        daemon.wait_to_say(harness.READY)
        self.assertEqual(sorted(os.listdir(self.root + said["VOLUME"])),
                         ["control", "lanes", "lock"])
        self.ends_on_signal(daemon)


if __name__ == "__main__":
    harness.main()
