#!/usr/bin/env python3
"""Every rule of tidy complains about a text that breaks it, and about no text that keeps it."""
import sys
import unittest

sys.dont_write_bytecode = True
import rules  # noqa: E402

HEADERS = {"common/base/ids.hpp", "common/net/port.hpp", "common/config/log.hpp",
           "aggregator/engine/engine.hpp", "aggregator/daemon/lane.hpp", "worker/engine/engine.hpp",
           "worker/loop/progress.hpp", "sluice/sluice.hpp", "tests/sim/app.hpp"}
UNFINISHED = ["TO" + "DO: later", "FIX" + "ME", "a place" + "holder", "good enough for " + "now",
              "simpli" + "fied version", "a Dum" + "my value", "HA" + "CK", "XX" + "X"]
MACHINE_PATHS = ["/wo" + "rk/main/build", '"/ho' + 'me/someone/sluice"', "cd /ro" + "ot/x"]


def complaints(path, text):
    return list(rules.check(path, text, HEADERS))


class Tidy(unittest.TestCase):
    def notices(self, path, text, saying):
        found = complaints(path, text)
        self.assertEqual(len(found), 1, found)
        self.assertIn(saying, found[0])

    def accepts(self, path, text):
        self.assertEqual(complaints(path, text), [])

    def may_not(self, path, include):
        self.notices(path, f"#include {include}\n", "may not include")

    def test_words(self):
        for word in UNFINISHED:
            self.notices("docs/x.md", word + "\n", "unfinished work")
        for path in MACHINE_PATHS:
            self.notices("scripts/x.sh", path + "\n", "a machine's path")
        self.accepts("docs/x.md", "net" + "work/path, 16 times, relative/ro" + "ot/x\n")

    def test_lines(self):
        self.accepts("common/x.py", "x" * 100 + "\n")
        self.notices("common/x.py", "x" * 101 + "\n", "101 columns")
        self.notices("common/x.py", "x \n", "blanks at the end")
        self.notices("common/x.py", "x", "no end")

    def test_engines_know_no_network_threads_or_log(self):
        for path in ("aggregator/engine/engine.cpp", "aggregator/engine/formation.cpp",
                     "worker/engine/stream.cpp", "worker/engine/operation.cpp",
                     "common/protocol/packet.cpp", "common/numeric/kernels.cpp"):
            once = "#pragma once\n" if path.endswith("hpp") else ""
            for header in ("<rte_mbuf.h>", "<spdlog/spdlog.h>", '"common/net/port.hpp"',
                           '"common/config/log.hpp"', '"aggregator/daemon/lane.hpp"',
                           '"worker/loop/progress.hpp"', "<sys/socket.h>", "<unistd.h>"):
                self.notices(path, f"{once}#include {header}\n", "may not include")
            self.notices(path, f"{once}#include <thread>\nstd::thread t;\n", "no threads")
            self.accepts(path, f'{once}#include "common/base/ids.hpp"\n')

    def test_dpdk_has_one_home(self):
        for path in ("aggregator/daemon/lane.cpp", "worker/loop/attachment.cpp",
                     "bench/perf/main.cpp", "examples/x.cpp", "common/config/x.cpp",
                     "tests/sim/x.cpp"):
            self.may_not(path, "<rte_ethdev.h>")
        self.accepts("common/net/port.cpp", "#include <rte_ethdev.h>\n")

    def test_aggregator_and_worker_never_meet(self):
        self.may_not("aggregator/daemon/daemon.cpp", '"worker/engine/engine.hpp"')
        self.may_not("worker/loop/progress.cpp", '"aggregator/engine/engine.hpp"')
        self.may_not("common/net/port.cpp", '"worker/engine/engine.hpp"')
        self.accepts("tests/sim/x.cpp",
                     '#include "aggregator/engine/engine.hpp"\n'
                     '#include "worker/engine/engine.hpp"\n')
        self.may_not("tests/sim/x.cpp", '"aggregator/daemon/lane.hpp"')

    def test_programs_know_the_public_interface_only(self):
        for path in ("bench/perf/main.cpp", "examples/first_program.cpp", "tests/system/api/x.cpp"):
            self.may_not(path, '"worker/engine/engine.hpp"')
            self.accepts(path, "#include <sluice/sluice.hpp>\n")
        self.notices("worker/include/sluice/sluice.hpp",
                     '#pragma once\n#include "common/base/ids.hpp"\n', "may not include")

    def test_stray_includes(self):
        self.notices("bench/x.cpp", "#include <vector>\nint x;\n", "<vector> is not used")
        self.accepts("bench/x.cpp", "#include <vector>\nstd::vector<int> x;\n")
        self.notices("bench/x.cpp", '#include "../common/x.hpp"\n', "named from its root")
        self.notices("aggregator/x.cpp", '#include "lane.hpp"\n', "named from its root")
        self.notices("bench/x.cpp", "#include <map>\n#include <map>\nstd::map<int, int> x;\n",
                     "included twice")
        self.notices("elsewhere/x.cpp", '#include "common/base/ids.hpp"\n', "in no layer")

    def test_headers(self):
        self.notices("bench/x.hpp", "int x;\n", "#pragma once")
        texts = {"a/x.hpp": "", "a/x.cpp": '#include "a/x.hpp"\n', "a/y.hpp": "", "p/z.hpp": ""}
        self.assertEqual(list(rules.unused_headers(texts, {"p/z.hpp"})),
                         ["a/y.hpp: nobody includes it"])


if __name__ == "__main__":
    unittest.main()
