"""Who may include whom: the arrows of docs/architecture.md. The first row that fits a path holds.

A row: a pattern of paths, the project's directories and files that it may include, and the headers
of others that it may. Standard headers are free for all but what NOT_IN_CORE names.
"""
import re

# State machines without I/O, threads and clocks.
ENGINES = r"(aggregator|worker|worker/host)/engine/"
# So are these, except that they ask for memory of the process.
HIERARCHY = (r"worker/(job/membership|hierarchy/(hierarchical_membership|parts|placement|steps)"
             r"|host/(keyed_sum|sums))\.hpp")
BASE = [r"common/base/", r"sluice/(types|error)\.hpp"]
NUMERIC = BASE + [r"common/numeric/"]
PROTOCOL = NUMERIC + [r"common/protocol/"]
CORE = PROTOCOL + [r"rounds/"]
LOGGER = [r"common/log/"]
LOOP = CORE + LOGGER + [r"common/(config|memory|net)/"]
FILES = [r"common/memory/(closing|descriptor|own_file)\.hpp"]
LOG = [r"spdlog/"]
SYSTEM = [r"sys/", r"net/", r"arpa/", r"netinet/",
          r"(unistd|fcntl|poll|pthread|sched|spawn|dlfcn|sodium)\.h"]

TEST = SYSTEM + LOG + [r"catch2/", r"nlohmann/", r"hwy/", r"rte_"]

# path                       project headers                          headers of others
LAYERS = [
    (r"common/include/",     [],                                      []),
    (r"common/base/random_id", BASE,                                  [r"sodium\.h"]),
    (r"common/base/",        BASE,                                    []),
    (r"common/numeric/gaps\.cpp", NUMERIC,                            [r"hwy/", r"immintrin\.h"]),
    (r"common/numeric/",     NUMERIC,                                 [r"hwy/"]),
    (r"common/protocol/(protection|secret)\.cpp", PROTOCOL,           [r"isa-l/", r"sodium\.h"]),
    (r"common/protocol/(aes_gcm|packet_cipher)\.cpp", PROTOCOL,
     [r"intel-ipsec-mb\.h", r"sodium\.h"]),
    (r"common/protocol/",    PROTOCOL,                                []),
    (r"common/log/formats\.cpp", LOGGER,                              LOG + SYSTEM),
    (r"common/log/",         LOGGER + [r"common/base/log_level"],     LOG),
    (r"common/config/",      BASE + LOGGER + FILES + [r"common/(config/|protocol/secret)"],
     SYSTEM + LOG + [r"boost/"]),
    (r"common/http/",        BASE + [r"common/(http/|memory/(descriptor|thread_without_signals))"],
     SYSTEM),
    (r"common/metrics/",     BASE + [r"common/metrics/"],             [r"prometheus/"]),
    (r"common/memory/",      BASE + [r"common/memory/"],              SYSTEM),
    (r"common/net/group_filter\.cpp", BASE + [r"common/net/"],
     SYSTEM + [r"rte_", r"linux/if_packet\.h"]),
    (r"common/net/kernel_interface\.cpp", [r"common/net/"],
     SYSTEM + [r"linux/(ethtool|if_ether|if_packet|sockios)\.h"]),
    (r"common/net/capture\.cpp", BASE + [r"common/(net/|memory/thread_without_signals)"],
     SYSTEM + [r"rte_", r"pcap/"]),
    (r"common/net/",         BASE + LOGGER + FILES + [r"common/net/"], SYSTEM + LOG + [r"rte_"]),
    (r"rounds/",             PROTOCOL + [r"rounds/"],                 []),
    (r"aggregator/engine/",  CORE + [r"aggregator/engine/"],          []),
    (r"aggregator/monitoring/", LOOP + [r"aggregator/(engine|monitoring)/",
                                        r"common/(http|metrics)/"],
     SYSTEM + LOG + [r"nlohmann/", r"prometheus/"]),
    (r"aggregator/daemon/",  LOOP + [r"aggregator/", r"common/http/"],
     SYSTEM + LOG + [r"nlohmann/"]),
    (r"worker/include/",     [r"sluice/"],                            []),
    (r"worker/engine/",      CORE + [r"worker/engine/", r"sluice/(device|statistics)\.hpp"], []),
    (r"worker/host/engine/", CORE + [r"worker/(host/)?engine/", r"sluice/statistics\.hpp"], []),
    (r"worker/memory/",      BASE + [r"(common|worker)/memory/"],     SYSTEM + [r"linux/magic\.h"]),
    (r"worker/config/",      LOOP + [r"worker/config/", r"sluice/"],  SYSTEM),
    (r"worker/job/",         LOOP + [r"worker/(engine|job)/", r"sluice/"], []),
    (r"worker/host/",        LOOP + [r"worker/(engine|host|job|memory)/", r"sluice/"],
     SYSTEM + LOG),
    (r"worker/hierarchy/",   LOOP + [r"worker/(engine|hierarchy|host|job|loop|memory)/",
                                   r"sluice/"],
     SYSTEM),
    (r"worker/loop/metrics_server\.cpp", LOOP + [r"worker/(job|loop)/", r"common/(http|metrics)/"],
     [r"sluice/error\.hpp", r"prometheus/"]),
    (r"worker/loop/",        LOOP + [r"worker/(config|engine|job|loop|memory)/", r"sluice/"],
     SYSTEM + LOG),
    (r"worker/compress/",    LOOP + [r"worker/compress/", r"sluice/"], []),
    (r"worker/api/",         LOOP + [r"worker/", r"sluice/"],         SYSTEM + LOG),
    (r"bindings/c/",
     BASE + [r"bindings/c/", r"sluice/", r"worker/config/worker_settings\.hpp"],
     [r"pthread\.h", r"sluice/sluice\.h"]),
    (r"bindings/torch/",     [r"bindings/torch/", r"sluice/",
                              r"common/memory/thread_without_signals\.hpp"],
     SYSTEM + [r"(torch|ATen|c10|pybind11)/"]),
    (r"bindings/mpi/",       [r"bindings/mpi/", r"sluice/",
                              r"common/memory/thread_without_signals\.hpp"],
     SYSTEM + [r"mpi\.h"]),
    (r"bench/protection\.cpp", PROTOCOL,                              []),
    (r"bench/kernels\.cpp",   CORE,                                   [r"benchmark/"]),
    (r"bench/host_sum\.cpp", CORE + [r"worker/memory/"],            SYSTEM + [r"linux/futex\.h"]),
    (r"bench/keyed_lane\.cpp", [r"aggregator/engine/", r"worker/engine/", r"bench/"],
     [r"sys/mman\.h", r"time\.h"]),
    (r"bench/sparse_sum\.cpp", PROTOCOL + [r"bench/", r"sluice/"],  [r"malloc\.h"]),
    (r"bench/perf/buffers\.", [r"bench/", r"sluice/"],              SYSTEM),
    (r"bench/lib/peers/sparse/", [r"bench/lib/peers/sparse/"],        [r"mpi\.h", r"malloc\.h"]),
    (r"bench/lib/",          [],                                      SYSTEM),
    (r"bench/pktgen/",       LOOP + [r"bench/", r"aggregator/", r"worker/", r"sluice/"],
     [r"nlohmann/"] + SYSTEM),
    (r"bench/perf/",         [r"bench/", r"sluice/", r"common/base/version\.hpp"],
     [r"boost/", r"nlohmann/"]),
    (r"bench/",              [r"bench/", r"sluice/"],                 [r"boost/", r"nlohmann/"]),
    (r"reference/",          [r"bench/", r"bindings/mpi/mpi_settings\.hpp", r"common/config/",
                              r"common/base/version\.hpp", r"worker/config/worker_settings\.hpp",
                              r"(aggregator/monitoring/metrics|worker/loop/metrics_server)\.hpp"],
     [r"boost/", r"nlohmann/"]),
    (r"examples/",           [r"examples/", r"sluice/"],              [r"boost/"] + SYSTEM),
    (r"tests/sim/host_level/fiber\.", [r"tests/sim/"],                [r"ucontext\.h"]),
    (r"tests/sim/stories/",  CORE + [r"tests/sim/", r"tests/unit/catch\.hpp"], []),
    (r"tests/sim/",          CORE + [r"sluice/device\.hpp", r"tests/sim/", ENGINES, HIERARCHY],
     [r"boost/"]),
    (r"tests/system/api/",   [r"sluice/", r"tests/system/api/"],      SYSTEM),
    (r"tests/",              [r""],                                   TEST),
]
IN_CORE = re.compile(r"common/(base|protocol|numeric)/|rounds/|" + ENGINES)
NOT_IN_CORE = {"thread", "mutex", "shared_mutex", "condition_variable", "future", "fstream",
               "iostream", "filesystem", "csignal"}
# The idle strategies are what loops do between turns: they sleep.
EXCEPTIONS = {("common/base/idle.hpp", "thread")}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
IS_STANDARD = re.compile(r"[a-z_]+")  # <vector>, <cstdint>; other headers have a dot or a slash
IS_C_STANDARD = re.compile(r"(assert|errno|signal|time)\.h")


def includes(text):
    """(line number, "quote" or "<", header) of each include."""
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1), found.group(2)


def complaint_about(path, header, is_project_header):
    """Why `path` may not include `header`; None if it may."""
    row = next((row for row in LAYERS if re.match(row[0], path)), None)
    if row is None:
        return f"{path} is in no layer: give it one in tests/tidy/layers.py"
    _, project, others = row
    if is_project_header:
        if any(re.match(pattern, header) for pattern in project):
            return None
        return f"this layer may not include {header}"
    if IS_STANDARD.fullmatch(header) or IS_C_STANDARD.fullmatch(header):
        if header in NOT_IN_CORE and IN_CORE.match(path) and (path, header) not in EXCEPTIONS:
            return f"the core has no threads and no I/O: <{header}>"
        return None
    if any(re.match(pattern, header) for pattern in others):
        return None
    return f"this layer may not include <{header}>"
