"""The commands in README.md and docs/ work as they are written there."""
import glob
import os
import re
import subprocess

import documents
import harness

SYSTEM_TESTS = os.path.dirname(os.path.realpath(__file__))


def source_of(test):
    path = os.path.join(SYSTEM_TESTS, test + ".py")
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


class Documents(harness.SystemTest):
    def typed(self, line, **settings):
        """Runs them as in the checkout's root, with the programs of this build in PATH. Where
        the reader chooses how long or how large, it is less."""
        cluster = "scripts/local-cluster"
        line = line.replace(cluster, f"{cluster} --build {harness.build}")
        line = re.sub(r"--duration \d+", "--duration 1", line)
        if "sluice-perf" in line:
            line = line.replace("-e 64M", "-e 1M") + " -n 1 -w 0"
        line += " --duration 1" if "sluice-pktgen" in line and "--duration" not in line else ""
        line = line.replace("report.json", self.directory("report.json"))
        programs = {os.path.dirname(harness.program(name))
                    for name in ("sluice-aggregator", "sluice-pktgen")}
        done = subprocess.run(
            ["bash", "-uc", line], cwd=harness.ROOT, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.environment(PATH=":".join([*programs, os.environ["PATH"]]), **settings))
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}")
        return done.stdout

    def test_every_command_is_run_or_marked(self):
        """A new block needs a test that takes its lines from there, or a mark that says why not."""
        seen = 0
        for path in documents.paths():
            for block in documents.blocks(path):
                if block.language not in documents.SHELL:
                    continue
                seen += 1
                tests = [test for test in documents.tests_of(block)
                         if f'"{path}"' in source_of(test)]
                lines = [line for line in block.lines if not documents.is_excused(line, block)]
                self.assertTrue(tests or not lines,
                                f"{path}:{block.line}: no test of tests/system/ runs {lines}")
        self.assertGreater(seen, 8)

    def test_links_lead_somewhere(self):
        for path in documents.paths():
            for line, target in documents.links(path):
                with self.subTest(document=path, line=line, target=target):
                    file, _, heading = target.partition("#")
                    place = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file \
                        else path
                    self.assertTrue(os.path.exists(os.path.join(harness.ROOT, place)))
                    if heading and place.endswith(".md"):
                        self.assertIn(heading, documents.headings(place))

    def test_comparison_has_the_figures_of_other_pages(self):
        """Rows that begin in the same way must be changed together after a new measurement."""
        def figures(path, begin, cells):
            row = next(line for _, line in documents.outside_blocks(path)
                       if line.startswith(begin) and re.search(r"\d", line))
            told = re.sub(r"\(.*?\)", "", row.removeprefix(begin)).split("|")[:cells]
            return [re.findall(r"[\d.]*\d", cell) for cell in told]

        for path, cells, begins in (
                ("README.md", 4, ("| 100% (dense) |", "| 10% |", "| 1% |")),
                ("docs/performance.md", 3, ("| Gloo |", "| Open MPI |"))):
            for begin in begins:
                with self.subTest(row=begin):
                    self.assertEqual(figures("docs/comparison.md", begin, cells),
                                     figures(path, begin, cells))

    def test_first_programs(self):
        first, perf, alone = documents.commands("README.md", "./scripts/setup")
        self.assertIn("Avg bus bandwidth", self.typed(perf))
        line, = documents.commands("docs/hosts.md", "./scripts/local-cluster")
        for program in (first, alone, line):
            self.assertEqual(self.typed(program).count("the ranks' sum is 10"), 4)

    def test_first_program_in_python(self):
        line, = documents.commands("README.md", "./scripts/local-cluster --workers 4 -- "
                                   "/usr/bin/python3")
        self.assertEqual(self.typed(line).count("the ranks' sum is 10"), 4)

    def need_pytorch(self):
        if not glob.glob(os.path.join(harness.torch_package(), "sluice_torch/_backend*.so")):
            self.skipTest("this build has no PyTorch")

    def test_backend_of_pytorch(self):
        """As in README.md, with a model: local-cluster sets everything that PyTorch needs."""
        self.need_pytorch()
        block, = (block.lines for block in documents.blocks("README.md")
                  if block.lines[0] == "import sluice_torch")
        at = next(i for i, line in enumerate(block) if line.startswith("model = "))
        block.insert(at, "model = torch.nn.Linear(2, 3)")
        path = self.directory("program.py")
        with open(path, "w", encoding="ascii") as file:
            file.write("\n".join([*block, "print('world of', dist.get_world_size())"]))
        said = self.typed(f"./scripts/local-cluster --workers 2 -- {harness.DEBIAN_PYTHON} {path}")
        self.assertEqual(said.count("world of 2"), 2)

    def test_training_with_pytorch(self):
        line, = documents.commands("README.md", "./scripts/setup --torch")
        self.need_pytorch()
        if "\nDescription" not in subprocess.run(["apt-cache", "dumpavail"], text=True, check=True,
                                                 stdout=subprocess.PIPE).stdout:
            self.skipTest("apt knows no packages, of which the example learns: apt-get update")
        self.assertIn("accuracy", self.typed(line))

    def test_a_file_of_secrets(self):
        make, = documents.commands("docs/security.md", "(umask")
        path = self.directory("secrets")
        self.typed(make.replace("/etc/sluice/secrets", path))
        with open(path, encoding="ascii") as file:
            secret = file.read().split()[1]
        daemon = self.start_daemon("--secret-file", path)
        self.end_steady_job(self.start_steady_job(2, daemon, SLUICE_SECRET=secret))
        self.ends_on_signal(daemon)

    def test_packet_generator(self):
        runtime = self.directory("run")
        os.makedirs(runtime)
        start = "sluice-aggregator --config configs/vhost.conf"
        with open(os.path.join(harness.ROOT, "configs", "vhost.conf"), encoding="utf-8") as file:
            self.assertIn(f"#   {start}\n", file.read())
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--config",
                            os.path.join(harness.ROOT, "configs", "vhost.conf"),
                            XDG_RUNTIME_DIR=runtime)
        daemon.wait_to_say(harness.READY)
        for line in documents.commands("docs/pktgen.md", "sluice-pktgen"):
            with self.subTest(line):
                self.assertIn("wrong 0", self.typed(line, XDG_RUNTIME_DIR=runtime))


if __name__ == "__main__":
    harness.main()
