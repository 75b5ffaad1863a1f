#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/config/address.hpp"
#include "common/config/cores.hpp"
#include "common/config/lane_count.hpp"
#include "common/config/log.hpp"
#include "common/config/nearest_name.hpp"
#include "common/config/variable_names.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/config_parts.hpp"

namespace sluice::config::config_tests {
namespace {

using Action = ParseOutcome::Action;

std::string one_line(const std::string& text) {
  std::istringstream in(text);
  std::string words;
  for (std::string word; in >> word;) words += (words.empty() ? "" : " ") + word;
  return words;
}

fs::path example_configs() {
  for (fs::path at : {fs::current_path(), fs::absolute(__FILE__)})
    for (; at != at.root_path(); at = at.parent_path())
      if (fs::exists(at / "configs/vhost.conf")) return at / "configs";
  FAIL("configs/ is not above the working directory");
  return {};
}

// The ranges as documented, written a second time so that no change of the table goes unseen.
struct IntegerFacts {
  std::string name;
  std::int64_t min;
  std::int64_t max;
  std::int64_t default_value;
  Words beside = {};  // other settings without which an edge is refused
};

const std::vector<IntegerFacts> kIntegers{
    {"vhost-max-ports", 1, 32, 31},
    {"mtu", 576, 9698, 9000},
    {"port-mtu", 576, 9698, 1500},
    {"port-vlan", 0, 4094, 0, {"--port", "net_af_packet0,iface=eth1", "--address", "10.0.0.9/24"}},
    {"udp-port", 1, 65535, 4747},
    {"streams", 1, 1024, 64},
    {"history", 2, 64, 8},
    {"max-jobs", 1, 4096, 1024},
    {"job-memory-mib", 1, 1'048'576, 64},
    {"shard", 0, 255, 0, {"--shards", "256", "--streams", "256"}},
    {"shards", 1, 256, 1, {"--streams", "256"}},
    {"lanes", 0, 8, 0},
    {"reply-rate-limit", 1, 1'000'000, 1000},
    {"liveness-timeout-ms", 100, 600'000, 5000},
    {"formation-timeout-ms", 100, 600'000, 30'000},
    {"drain-timeout-ms", 0, 600'000, 0},
    {"straggler-warning-ms", 0, 600'000, 1000},
    {"memory-mib",
     65,
     1'048'576,
     0,
     {"--streams", "2", "--history", "2", "--vhost-max-ports", "1", "--mtu", "576"}},
    {"log-rate-limit", 0, 1'000'000, 10},
    {"stats-interval-s", 0, 86'400, 0},
};

const std::map<std::string, Words> kWords{
    {"udp-checksum", {"auto", "on", "off"}},
    {"authenticate-packets", {"on", "off"}},
    {"encrypt-packets", {"on", "off"}},
    {"integrity", {"auto", "on", "off"}},
    {"idle", {"busy-spin", "yield", "backoff"}},
    {"log-level", {"trace", "debug", "info", "warn", "error"}},
    {"log-format", {"text", "json", "journald"}},
    {"hugepages", {"on", "off"}},
    {"pci", {"on", "off"}},
    {"telemetry", {"on", "off"}},
    {"control-access", {"owner", "group"}},
};

const Words kTexts{"vhost-dir",      "port",          "address", "file-prefix", "eal-args",
                   "log-file",       "secret-file",   "faults",  "cpu",         "multicast-groups",
                   "metrics-listen", "control-socket"};

const std::set<std::string> kReloadable{
    "max-jobs",  "secret-file",    "reply-rate-limit", "drain-timeout-ms", "straggler-warning-ms",
    "log-level", "log-rate-limit", "stats-interval-s"};

}  // namespace

TEST_CASE("every setting is in exactly one of the test's tables") {
  for (const AggregatorSetting& setting : aggregator_settings()) {
    CAPTURE(setting.name);
    const auto integers =
        std::count_if(kIntegers.begin(), kIntegers.end(),
                      [&](const IntegerFacts& facts) { return facts.name == setting.name; });
    const auto texts = std::count(kTexts.begin(), kTexts.end(), setting.name);
    CHECK(setting.reloadable == (kReloadable.count(setting.name) != 0));
    CHECK(integers + texts + static_cast<long>(kWords.count(setting.name)) == 1);
  }
  CHECK(aggregator_settings().size() == kIntegers.size() + kWords.size() + kTexts.size());
}

TEST_CASE("integers: their edges are accepted, what is beyond is refused by name and range") {
  for (const IntegerFacts& facts : kIntegers) {
    CAPTURE(facts.name);
    CHECK(shown({}, facts.name) == Words{std::to_string(facts.default_value)});
    for (const std::int64_t value : {facts.min, facts.max}) {
      Words arguments = valid({"--" + facts.name, std::to_string(value)});
      arguments.insert(arguments.end(), facts.beside.begin(), facts.beside.end());
      CHECK(shown(parse(arguments).config, facts.name) == Words{std::to_string(value)});
    }
    for (const std::string& value : {std::to_string(facts.min - 1), std::to_string(facts.max + 1),
                                     std::string("12x"), std::string("99999999999999999999")}) {
      const std::string message = error_of(valid({"--" + facts.name, value}));
      CHECK_THAT(message, Contains(facts.name + " must be "));
      CHECK_THAT(message, Contains(std::to_string(facts.max) + ", not '" + value + "' (flag --" +
                                   facts.name + ")"));
    }
  }
  CHECK(parse(valid({"--memory-mib", "0"})).config.memory_mib == 0);
}

TEST_CASE("history is a power of two") {
  CHECK(error_of(valid({"--history", "12"})) ==
        "history must be a power of two, 2..64, not '12' (flag --history)");
}

TEST_CASE("words: each is accepted, any other is refused with the list") {
  for (const auto& [name, words] : kWords) {
    CAPTURE(name);
    for (const std::string& word : words) {
      const auto outcome = parse(valid({"--" + name + "=" + word}),
                                 {{"SLUICE_AGGREGATOR_SECRET", "needed-to-authenticate"}});
      CHECK(shown(outcome.config, name) == Words{word});
    }
    CHECK_THAT(error_of(valid({"--" + name + "=often"})),
               Contains(name + " must be " + words[0]) && Contains(", not 'often'"));
  }
}

TEST_CASE("a switch without a value is on, and has the usual words") {
  CHECK(parse(valid({"--hugepages", "--shards", "2"})).config.hugepages);
  CHECK_FALSE(parse(valid({"--telemetry", "off"})).config.telemetry);
  for (const char* const word : {"on", "true", "yes", "1"})
    CHECK(parse(valid({"--pci=" + std::string(word)})).config.pci);
  for (const char* const word : {"off", "false", "no", "0"})
    CHECK_FALSE(parse(valid({"--telemetry=" + std::string(word)})).config.telemetry);
}

TEST_CASE("texts and lists") {
  CHECK(parse(valid({"--file-prefix", "a-1_B"})).config.file_prefix == "a-1_B");
  CHECK_THAT(error_of(valid({"--file-prefix", "a/b"})),
             Contains("file-prefix must be at most 32 letters, digits, - and _, not 'a/b'"));
  CHECK_THAT(error_of({"--vhost-dir", "/" + std::string(75, 'd')}), Contains("at most 75 bytes"));
  const AggregatorConfig config = parse({"--port", "net_tap0", "--port=net_null1,size=64",
                                         "--address", "10.0.0.1/24", "--address", "10.0.1.1/24"})
                                      .config;
  CHECK(config.ports == Words{"net_tap0", "net_null1,size=64"});
  CHECK(config.addresses == std::vector<InterfaceAddress>{{0x0A00'0001, 24}, {0x0A00'0101, 24}});
  CHECK_THAT(error_of({"--port", "net_tap0", "--address", "10.0.0.1"}),
             Contains("address must be a unicast IPV4/PREFIX") && Contains("not '10.0.0.1' (flag"));
}

TEST_CASE("a flag wins over the environment, that over the file, that over the default") {
  const Directory directory;
  const std::string file =
      directory.file("a.conf", "# comment\n\nvhost-dir = " + directory.path() +
                                   "\nudp-port = 1001   # trailing\nshards = 2\n"
                                   "log-rate-limit=7\neal-args = -n 4\neal-args = -v\n");
  const std::map<std::string, std::string> variables{{"SLUICE_AGGREGATOR_UDP_PORT", "1002"},
                                                     {"SLUICE_AGGREGATOR_SHARDS", "3"}};
  const auto config = parse({"--config", file, "--udp-port", "1003"}, variables).config;
  CHECK(config.udp_port == 1003);
  CHECK(config.shards == 3);
  CHECK(config.log_rate_limit == 7);
  CHECK(config.max_jobs == 1024);
  CHECK(config.vhost_dir == directory.path());
  CHECK(config.eal_args == Words{"-n", "4", "-v"});
  CHECK(parse({"--config", file, "--eal-args=--match"}).config.eal_args == Words{"--match"});

  SECTION("the file itself may be named by the environment") {
    CHECK(parse({}, {{"SLUICE_AGGREGATOR_CONFIG", file}}).config.udp_port == 1001);
  }
  SECTION("a list in the environment is separated by blanks") {
    const auto ports = parse({}, {{"SLUICE_AGGREGATOR_PORT", "net_tap0 net_tap1"},
                                  {"SLUICE_AGGREGATOR_ADDRESS", "10.0.0.1/24 10.0.1.1/24"}});
    CHECK(ports.config.ports.size() == 2);
    CHECK(ports.config.addresses.size() == 2);
  }
}

TEST_CASE("every setting can be given in each place, and an error names the place") {
  const Directory directory;
  for (const IntegerFacts& facts : kIntegers) {
    const std::string value = std::to_string(facts.max + 1);
    std::string variable = "SLUICE_AGGREGATOR_" + facts.name;
    for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    const std::string file = directory.file("a.conf", "\n" + facts.name + " = " + value + "\n");
    CHECK_THAT(error_of(valid({}), {{variable, value}}), Contains("(variable " + variable + ")"));
    CHECK_THAT(error_of(valid({"--config", file})), Contains("(" + file + ":2)"));
  }
}

TEST_CASE("unknown names are refused with the nearest one") {
  const Directory directory;
  CHECK(error_of({"--udp-prot", "1"}) == "unknown flag 'udp-prot': did you mean 'udp-port'?");
  CHECK(error_of({"--check"}) == "unknown flag 'check': --help lists all settings");
  CHECK(error_of({"--chek-config"}) == "unknown flag 'chek-config': did you mean 'check-config'?");
  const std::string file = directory.file("a.conf", "vhost-dir=x\nmax_jobs = 3\n");
  CHECK(error_of({"--config", file}) ==
        file + ":2: unknown setting 'max_jobs': did you mean 'max-jobs'?");
  CHECK_THAT(error_of({"--config", directory.file("b.conf", "quite = else\n")}),
             Contains("unknown setting 'quite'"));
  CHECK_THAT(error_of({"--config", directory.file("c.conf", "config = b.conf\n")}),
             Catch::EndsWith("unknown setting 'config': --help lists all settings"));
  CHECK(nearest_name("colour", {"color", "colours"}) == "color");
  CHECK(nearest_name("abc", {"xyz"}) == std::nullopt);
  CHECK(edit_distance("abcd", "abcd") == 0);
  CHECK(edit_distance("abcd", "bacd") == 1);
  CHECK(edit_distance("abcd", "xbd") == 2);
  CHECK(edit_distance("", "abc") == 3);
}

TEST_CASE("misspelt variables are refused with the name that is meant") {
  const std::vector<std::pair<std::string, std::string>> misspelt{
      {"SLUICE_WORLDSIZE", "SLUICE_WORLD_SIZE"},
      {"SLUICE_WORLD__SIZE", "SLUICE_WORLD_SIZE"},
      {"SLUICEWORLD_SIZE", "SLUICE_WORLD_SIZE"},
      {"SLUICE_World_Size", "SLUICE_WORLD_SIZE"},
      {"SLUICE_WORDL_SIZE", "SLUICE_WORLD_SIZE"},
      {"SLUICE_RANKS", "SLUICE_RANK"},
      {"SLUICE_MUT", "SLUICE_MTU"},
      {"SLUICE_AGREGATOR", "SLUICE_AGGREGATORS"},
      {"SLUICE_AGGREGATOR", "SLUICE_AGGREGATORS"},
      {"SLUICE_JOIN_TIMEOUT", "SLUICE_JOIN_TIMEOUT_MS"},
      {"SLUICE_JOIN_TIMEOUT_S", "SLUICE_JOIN_TIMEOUT_MS"},
      {"SLUICE_MEMORY", "SLUICE_MEMORY_MIB"},
      {"SLUICE_LIBARY", "SLUICE_LIBRARY"},
      {"SLUICE_MPI_MIN_BYTE", "SLUICE_MPI_MIN_BYTES"},
      {"SLUICE_AGGREGATOR_UDP_PROT", "SLUICE_AGGREGATOR_UDP_PORT"},
      {"SLUICE_AGGREGATOR_MAXJOBS", "SLUICE_AGGREGATOR_MAX_JOBS"},
      {"SLUICE_AGGREGATOR_CONFG", "SLUICE_AGGREGATOR_CONFIG"},
      {"SLUICE_AGGREGATOR_SECRETS", "SLUICE_AGGREGATOR_SECRET"}};
  for (const auto& [name, meant] : misspelt) {
    const std::string refusal = "the environment has " + name + ": did you mean " + meant + "?";
    CHECK_THROWS_WITH(check_variable_names({"PATH", name}), refusal);
    CHECK(error_of(valid({}), {{name, "1"}}) == refusal);
    CHECK(error_of({"--print-config"}, {{name, "1"}}) == refusal);
    CHECK(parse({"--help"}, {{name, "1"}}).action == ParseOutcome::Action::kHelp);
  }
}

TEST_CASE("other variables that nothing reads are told") {
  CHECK(check_variable_names(known_variables()).empty());
  CHECK(check_variable_names({"PATH", "SLUICEBOX_HOME", "sluice_rank", "SLUCE_RANK"}).empty());
  const std::vector<std::pair<std::string, std::string>> unknown{
      {"SLUICE_MY_OWN_WORD", ""},
      {"SLUICE_ROOT", ": is SLUICE_HOST meant?"},
      {"SLUICE_JOB_NAME", ": is SLUICE_JOB meant?"},
      {"SLUICE_UDP_PORT", ": is SLUICE_AGGREGATOR_UDP_PORT meant?"},
      {"SLUICE_LANES", ": is SLUICE_AGGREGATOR_LANES meant?"},
      {"SLUICE_WORLD", ": is SLUICE_WORLD_SIZE meant?"}};
  for (const auto& [name, suggestion] : unknown) {
    const std::string warning =
        "the environment has " + name + ", which Sluice does not read" + suggestion;
    CHECK(check_variable_names({name}) == Words{warning});
    CHECK(parse(valid({}), {{name, "1"}}).warnings == Words{warning});
    CHECK_THAT(parse(valid({"--check-config"}), {{name, "1"}}).text,
               Catch::EndsWith("\n# " + warning + "\n"));
  }
  setenv("SLUICE_MY_OWN_WORD", "x", 1);
  CHECK(check_variable_names().size() == 1);
  setenv("SLUICE_MY_OWN_WORD", "", 1);
  CHECK(check_variable_names().empty());
  unsetenv("SLUICE_MY_OWN_WORD");
}

TEST_CASE("half of what a launcher sets is told") {
  const auto warning = [](Variables variables) {
    return warning_of_half_placement(environment_of(std::move(variables)));
  };
  CHECK(warning({}) == std::nullopt);
  CHECK(warning({{"RANK", "0"}, {"WORLD_SIZE", "2"}}) == std::nullopt);
  CHECK(warning({{"RANK", "0"}, {"SLUICE_RANK", "0"}, {"SLUICE_WORLD_SIZE", "2"}}) == std::nullopt);
  CHECK(warning({{"RANK", "1"}, {"WORLDSIZE", "2"}}) ==
        "the environment has RANK, but not WORLD_SIZE: neither is taken");
  CHECK(warning({{"WORLD_SIZE", "2"}}) ==
        "the environment has WORLD_SIZE, but not RANK: neither is taken");
}

TEST_CASE("variables that Kubernetes makes for a service are no misspelt ones") {
  const Words of_service{"SLUICE_AGGREGATORS_SERVICE_HOST", "SLUICE_AGGREGATORS_SERVICE_PORT",
                         "SLUICE_AGGREGATORS_PORT", "SLUICE_AGGREGATORS_PORT_4747_UDP",
                         "SLUICE_AGGREGATORS_PORT_4747_UDP_ADDR"};
  CHECK(check_variable_names(of_service).empty());
  CHECK_THROWS(check_variable_names({"SLUICE_AGGREGATORS_PORT"}));
}

TEST_CASE("malformed input") {
  const Directory directory;
  CHECK_THAT(error_of({"start"}), Contains("unexpected argument 'start'"));
  CHECK_THAT(error_of({"--udp-port"}), Contains("udp-port") && Contains("missing"));
  CHECK_THAT(error_of({"--config", directory.file("a.conf", "mtu = 1500\nmtu 1500\n")}),
             Contains("a.conf:2: must be NAME = VALUE, not 'mtu 1500'"));
  CHECK_THAT(error_of({"--config", directory.file("b.conf", "[section]\n")}),
             Contains("b.conf:1: must be NAME = VALUE, not '[section]'"));
  CHECK_THAT(error_of({"--config", directory.path() + "/none"}),
             Contains("/none' (flag --config): must be a file that this user can read"));
  CHECK_THAT(error_of({"--config", directory.path()}), Contains("must be a file"));
  CHECK(error_of(valid({"--mtu", "1500", "--mtu", "1600"})) ==
        "mtu must be set once, not as '1500' (flag --mtu) and as '1600' (flag --mtu)");
  const std::string empty = directory.file("empty.conf", "");
  CHECK_THAT(error_of(valid({"--config", empty, "--config", empty})),
             Contains("config must be set once"));
  CHECK_THAT(error_of({"--config", directory.file("c.conf", "mtu = 1500\nmtu = 1500\n")}),
             Contains("c.conf:1)") && Contains("c.conf:2)"));
}

TEST_CASE("settings are checked against each other") {
  const Directory directory;
  const std::string file = directory.file("plain", "");
  CHECK_THAT(error_of(Words{}), Contains("neither vhost-dir nor port is set"));
  CHECK_THAT(error_of({"--port", "net_tap0"}), Contains("1 port but 0 address settings"));
  CHECK_THAT(error_of(valid({"--address", "10.0.0.1/24"})),
             Contains("0 port but 1 address settings"));
  CHECK(error_of(valid({"--shard", "3"}), {{"SLUICE_AGGREGATOR_SHARDS", "2"}}) ==
        "shard = 3 (flag --shard): must be below shards = 2 (variable SLUICE_AGGREGATOR_SHARDS)");
  CHECK_THAT(error_of(valid({"--shard", "1"})), Contains("must be below shards = 1 (default)"));
  CHECK(error_of(valid({"--shards", "65"})) ==
        "streams = 64 (default): must be at least shards = 65 (flag --shards)");
  CHECK(error_of(valid({"--lanes", "8", "--shards", "16"})) ==
        "streams = 64 (default): must be at least shards = 16 (flag --shards) times lanes = 8 "
        "(flag --lanes)");
  CHECK(error_of(valid({"--lanes", "8", "--shards", "64", "--streams", "1024"})) ==
        "lanes = 8 (flag --lanes): times shards = 64 (flag --shards) must be at most 256");
  CHECK(error_of(valid({"--lanes", "2", "--udp-port", "4748"})) ==
        "udp-port = 4748 (flag --udp-port): with vhost-dir and lanes = 2 (flag --lanes) must be "
        "4747, or differ from it by 2 at least");
  CHECK(error_of({"--port", "net_tap0", "--address", "10.0.0.1/24", "--lanes", "4", "--udp-port",
                  "65533"}) ==
        "udp-port = 65533 (flag --udp-port): with lanes = 4 (flag --lanes) must be at most 65532");
  CHECK(error_of(valid({"--lanes", "2", "--cpu", "0"})) ==
        "cpu = 0 (flag --cpu): one core for each lane expected, and lanes = 2 (flag --lanes)");
  CHECK(parse({"--port", "net_tap0", "--address", "10.0.0.1/24", "--lanes", "2", "--udp-port",
               "4748"})
            .config.udp_port == 4748);
  CHECK_THAT(error_of(valid({"--cpu", "1023"})), Contains("the machine has 0"));
  CHECK_THAT(error_of(valid({"--cpu", "-1"})), Contains("cpu must be 0..1023, not '-1'"));
  CHECK_THAT(error_of(valid({"--cpu", "1024"})), Contains("cpu must be 0..1023, not '1024'"));
  CHECK_THAT(
      error_of(valid({"--port", "net_tap0 net_tap1", "--address", "10.0.0.1/24 10.0.1.1/24"})),
      Contains("vhost-max-ports = 31 (default): ") && Contains("at most 32"));
  for (const char* const device : {"0000:3b:00.0", "3b:00.0,arg=1"})
    CHECK_THAT(error_of({"--port", device, "--address", "10.0.0.1/24"}),
               Contains("(flag --port): PCI devices need pci = on"));
  CHECK(parse({"--pci", "--port", "0000:3b:00.0", "--address", "10.0.0.1/24"}).config.pci);

  CHECK_THAT(error_of(valid({"--log-file", directory.path() + "/none/a.log"})),
             Contains("log-file = ") && Contains("/none' must exist"));
  CHECK_THAT(error_of(valid({"--log-file", directory.path()})), Contains("and is a directory"));
  CHECK_THAT(error_of({"--vhost-dir", file}), Contains("(flag --vhost-dir): must be a directory"));
  CHECK_THAT(error_of({"--vhost-dir", directory.path() + "/none/x"}),
             Contains("/none' must exist"));
  CHECK_NOTHROW(parse({"--vhost-dir", directory.path() + "/new/"}));
  CHECK_NOTHROW(parse(valid({"--log-file", directory.path() + "/a.log"})));
  CHECK_THAT(
      error_of(valid({"--log-file", directory.path() + "/a.log", "--log-format", "journald"})),
      Contains("must be empty with log-format = journald (flag --log-format)"));
  if (geteuid() != 0) {  // root may write anywhere
    fs::permissions(directory.path(), fs::perms::owner_read | fs::perms::owner_exec);
    CHECK_THAT(error_of(valid({"--log-file", directory.path() + "/a.log"})),
               Contains("must be writable for this user"));
    CHECK_THAT(error_of({"--vhost-dir", directory.path()}), Contains("must be writable"));
    fs::permissions(directory.path(), fs::perms::owner_all);
  }
}

TEST_CASE("help names every setting with its range, unit and default") {
  const ParseOutcome outcome = parse({"--help"});
  CHECK(outcome.action == Action::kHelp);
  CHECK(parse({"-h"}).action == Action::kHelp);
  const std::string help = one_line(outcome.text);
  for (const AggregatorSetting& setting : aggregator_settings()) {
    CHECK_THAT(help, Contains("--" + setting.name + " "));
    CHECK_THAT(help, Contains(one_line(setting.help + " " + range_and_default(setting))));
    CHECK_THAT(help, Contains(setting.group + ":"));
  }
  for (const IntegerFacts& facts : kIntegers) {
    if (facts.min < 0) continue;
    CHECK_THAT(help, Contains(std::to_string(facts.min) + ".." + std::to_string(facts.max)));
  }
  CHECK_THAT(help, Contains("[100..600000 ms, default 5000]"));
  CHECK_THAT(help, Contains("[1..4096 jobs, default 1024, reloadable]"));
  CHECK_THAT(help, Contains("[0..1023, default none]"));
}

TEST_CASE("version") {
  CHECK(parse({"--version"}).action == Action::kVersion);
  CHECK_THAT(parse({"--version"}).text,
             Catch::Matches("sluice-aggregator [0-9.]+ \\(build [0-9A-Za-z.-]+\\)\n"));
}

TEST_CASE("what follows -- goes to the EAL") {
  const auto outcome = parse(valid({"--eal-args=-n 2", "--", "--vdev", "net_null0", "--help"}));
  CHECK(outcome.action == Action::kRun);
  CHECK(outcome.config.eal_args == Words{"-n", "2", "--vdev", "net_null0", "--help"});
}

TEST_CASE("--check-config prints what is in effect, in the form of a config file") {
  const Directory directory;
  const auto outcome = parse(valid({"--check-config", "--port", "net_tap0", "--address",
                                    "10.0.0.1/24", "--eal-args=-n 2", "--stats-interval-s", "5"}));
  CHECK(outcome.action == Action::kCheck);
  CHECK_THAT(outcome.text, Contains("stats-interval-s = 5  # flag --stats-interval-s\n"));
  CHECK_THAT(outcome.text, Contains("history = 8  # default\n"));
  const auto again = parse({"--config", directory.file("a.conf", outcome.text)});
  for (const AggregatorSetting& setting : aggregator_settings())
    CHECK(setting.value.show(again.config) == setting.value.show(outcome.config));
}

TEST_CASE("--print-config tells where each value is from, and can be read back") {
  const Directory directory;
  const std::string file = directory.file(
      "a.conf", "# nothing\ncpu = 1 2\nstreams = 8\ncpu = 3\nlog-file =\nidle = yield\n");
  const Variables variables{{"SLUICE_AGGREGATOR_IDLE", "busy-spin"},
                            {"SLUICE_AGGREGATOR_PORT", "net_tap0 net_tap1"}};
  const auto outcome = parse({"--print-config", "--config", file, "--eal-args", "-n 2",
                              "--mtu=1500", "--hugepages", "--", "--vdev", "net_null0"},
                             variables);
  CHECK(outcome.action == Action::kPrint);
  for (const std::string& line :
       Words{"cpu = 1  # " + file + ":2", "cpu = 2  # " + file + ":2", "cpu = 3  # " + file + ":4",
             "streams = 8  # " + file + ":3", "# log-file =  # " + file + ":5",
             "idle = busy-spin  # variable SLUICE_AGGREGATOR_IDLE",
             "port = net_tap1  # variable SLUICE_AGGREGATOR_PORT", "mtu = 1500  # flag --mtu",
             "hugepages = on  # flag --hugepages", "eal-args = 2  # flag --eal-args",
             "eal-args = --vdev  # command line, after --", "history = 8  # default",
             "# vhost-dir =  # default", "# address =  # default"})
    CHECK_THAT(outcome.text, Contains("\n" + line + "\n"));
  const auto again = parse({"--print-config", "--config", directory.file("b.conf", outcome.text)});
  for (const AggregatorSetting& setting : aggregator_settings()) {
    CHECK_THAT(outcome.text,
               Contains("\n" + setting.name + " = ") || Contains("\n# " + setting.name + " = "));
    CHECK(setting.value.show(again.config) == setting.value.show(outcome.config));
  }
}

TEST_CASE("--print-config prints values that do not fit together, none that is wrong by itself") {
  CHECK_THAT(parse({"--print-config", "--shard", "3"}).text, Contains("shard = 3  # flag --shard"));
  CHECK(error_of({"--print-config", "--shard", "256"}) ==
        "shard must be 0..255, not '256' (flag --shard)");
  CHECK_THAT(error_of({"--print-config", "--check-config", "--shard", "3"}), Contains("neither"));
}

TEST_CASE("a value that a line has in quotes only is printed so, and read back") {
  const Directory directory;
  for (const std::string value :
       {"a#b", " a", "a\t", "# \"x\\", "\"a\"", "\"", "\\", "a \"#\" b"}) {
    INFO(value);
    const auto printed = parse({"--print-config", "--log-file", value});
    const std::string file = directory.file("a.conf", printed.text);
    CHECK(parse({"--print-config", "--config", file}).config.log_file == value);
  }
  const auto read = [&](const std::string& line) {
    return parse({"--print-config", "--config", directory.file("b.conf", line + "\n")})
        .config.log_file;
  };
  CHECK(read(R"(log-file = "a b"  # "c")") == "a b");
  CHECK(read(R"(log-file = "a" b)") == R"("a" b)");
  CHECK(parse({"--print-config", "--eal-args", "a#b"}).text.find("\neal-args = \"a#b\"  # ") !=
        std::string::npos);
}

TEST_CASE("a value that no line of a file can have is not printed as one") {
  for (const Words& flags : {Words{"--log-file", "a\nstreams = 1"}, Words{"--", "a b"}}) {
    Words arguments{"--print-config"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const std::string text = parse(arguments).text;
    CHECK_THAT(text, Contains(" has a value that a file cannot have: ") &&
                         !Contains("\nlog-file = ") && Contains("\nstreams = 64  # default\n"));
  }
}

TEST_CASE("the example configurations are valid") {
  const Directory directory;
  // The user of the tests may have no run-time directory, so that is replaced.
  const auto vhost = parse({"--check-config", "--config", example_configs() / "vhost.conf",
                            "--vhost-dir", directory.path()});
  CHECK(vhost.action == Action::kCheck);
  CHECK(vhost.config.ports.empty());
  const auto veth = parse({"--check-config", "--config", example_configs() / "veth.conf"});
  CHECK(veth.config.addresses == std::vector<InterfaceAddress>{{0x0A00'0001, 24}});
  // Nor may the machine have the core that is named.
  const auto node = parse(
      {"--check-config", "--config", example_configs() / "dedicated-node.conf", "--cpu", "0 0"});
  CHECK(node.config.hugepages);
  CHECK(node.config.pci);
  CHECK(node.config.shard == 1);
  CHECK(node.config.lanes == 2);
}

TEST_CASE("lanes follow from the cores where local workers alone use them") {
  const auto counted = [](std::uint32_t cores, const Words& arguments = {}) {
    return parse(valid(arguments), {}, {cores, std::nullopt}).config;
  };
  const std::map<std::uint32_t, int> by_cores{{1, 1},  {2, 1},  {4, 1},  {7, 1},   {8, 2},
                                              {12, 3}, {16, 4}, {64, 4}, {1024, 4}};
  for (const auto& [cores, lanes] : by_cores) CHECK(counted(cores).lanes == lanes);
  CHECK(counted(2).why_lanes == "a quarter of 2 cores, at least 1");
  CHECK(counted(8).why_lanes == "a quarter of 8 cores");
  CHECK(counted(20).why_lanes == "a quarter of 20 cores, at most 4");

  for (const char* const set : {"1", "2", "8"}) {
    CHECK(counted(16, {"--lanes", set}).lanes == std::stoi(set));
    CHECK(counted(2, {"--lanes", set}).why_lanes == "as set");
  }
  CHECK(counted(2, {"--cpu", "0 0"}).lanes == 2);
  CHECK(counted(2, {"--cpu", "0 0"}).why_lanes == "one for each core of cpu");
  CHECK(error_of(valid({"--cpu", "0 0 0 0 0 0 0 0 0"})) ==
        "cpu = 0 0 0 0 0 0 0 0 0 (flag --cpu): at most 8 cores expected, one for each lane");

  SECTION("one lane where more need what cores do not tell") {
    const Words port{"--port", "net_tap0", "--address", "10.0.0.1/24"};
    CHECK(counted(64, port).lanes == 1);
    CHECK(counted(64, port).why_lanes == "the default with a network port");
    CHECK(parse(port, {}, {64, std::nullopt}).config.lanes == 1);
    CHECK(counted(64, {"--shards", "2"}).lanes == 1);
    CHECK(counted(64, {"--shards", "2"}).why_lanes == "the default with several shards");
  }
  SECTION("no more than the other settings allow") {
    CHECK(counted(16, {"--streams", "3"}).lanes == 3);
    CHECK(counted(16, {"--udp-port", "4749"}).lanes == 2);
    CHECK(counted(16, {"--udp-port", "4751"}).lanes == 4);
    const auto two = least_memory_mib(counted(16, {"--lanes", "2"}));
    CHECK(counted(16, {"--memory-mib", std::to_string(two)}).lanes == 2);
    CHECK(counted(16, {"--memory-mib", std::to_string(two - 1)}).lanes == 1);
    CHECK(counted(16, {"--streams", "3"}).why_lanes ==
          "a quarter of 16 cores, as far as the other settings allow");
  }
  CHECK_THAT(
      parse(valid({"--check-config"}), {}, {16, std::nullopt}).text,
      Contains("\nlanes = 0  # default\n") && Contains("\n# lanes: 4, a quarter of 16 cores\n"));
}

TEST_CASE("the cores that may be used are those of the affinity, and no more than a quota") {
  const auto of = [](std::uint32_t allowed, std::optional<std::uint32_t> quota) {
    return Cores{allowed, quota}.describe();
  };
  CHECK(of(16, std::nullopt) == "16 cores");
  CHECK(of(16, 64) == "16 cores");
  CHECK(of(16, 2) == "2 cores (of 16, by a CPU quota)");
  CHECK(of(1, std::nullopt) == "1 core");
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(usable_cores().allowed == static_cast<std::uint32_t>(CPU_COUNT(&before)));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (unsigned cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usable_cores().allowed == 1);
  CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

TEST_CASE("a control group's CPU quota is counted in whole cores") {
  const Directory directory;
  const fs::path mount = directory.path();
  const auto quota = [&](const std::string& lines) {
    return cpu_quota(directory.file("cgroup", lines), mount);
  };
  const auto write = [&](const std::string& group, const std::string& name,
                         const std::string& text) {
    fs::create_directories(mount / group);
    directory.file(group + "/" + name, text + "\n");
  };
  CHECK(quota("") == std::nullopt);
  CHECK(quota("0::/a/b\n") == std::nullopt);
  CHECK(quota("no group\n0:\n") == std::nullopt);
  CHECK(cpu_quota(mount / "none", mount) == std::nullopt);

  write("a/b", "cpu.max", "max 100000");
  CHECK(quota("0::/a/b\n") == std::nullopt);
  write("a", "cpu.max", "650000 100000");  // what is above bounds all below
  CHECK(quota("0::/a/b\n") == 6u);
  write("a/b", "cpu.max", "250000 100000");
  CHECK(quota("0::/a/b\n") == 2u);
  CHECK(quota("0::/a\n") == 6u);
  CHECK(quota("0::/host/path/of/a/container\n") == std::nullopt);
  write(".", "cpu.max", "20000 100000");  // less than a core is one
  CHECK(quota("0::/host/path/of/a/container\n") == 1u);
  CHECK(quota("0::/../../a\n") == 1u);
  for (const char* const broken : {"", "x", "100000", "0 0", "100000 0", "-5 100000"}) {
    write(".", "cpu.max", broken);
    CHECK(quota("0::/\n") == std::nullopt);
  }

  write("cpu/v1", "cpu.cfs_quota_us", "400000");
  write("cpu/v1", "cpu.cfs_period_us", "100000");
  const std::string others = "3:memory:/a\n2:cpuset,cpuacct:/v1\n";
  CHECK(quota(others + "0::/\n") == std::nullopt);
  CHECK(quota(others + "4:cpu,cpuacct:/v1\n0::/\n") == 4u);
  CHECK(quota("4:cpu:/v1\n0::/a\n") == 4u);
  CHECK(quota("4:cpu:/v1\n0::/a/b\n") == 2u);
  write("cpu/v1", "cpu.cfs_quota_us", "-1");
  CHECK(quota("4:cpu:/v1\n") == std::nullopt);
}

TEST_CASE("packet memory follows its rule") {
  AggregatorConfig config;
  config.vhost_dir = "x";
  // 16 jobs * 64 streams * 10 + 64 * 31 + 64 * 31 = 14208 buffers of 9568 bytes: 129.6 MiB.
  CHECK(packet_memory_mib(config) == 64 + 130);
  config.shards = 3;  // 22 streams here: 3520 + 682 + 1984 = 6186 buffers, 56.4 MiB
  CHECK(packet_memory_mib(config) == 64 + 57);
  config.memory_mib = 100;
  CHECK(packet_memory_mib(config) == 100);
  AggregatorConfig network;
  network.ports = {"net_tap0"};
  // 10240 + 64 * 256 + 2048 = 28672 buffers of 2400 bytes: 65.6 MiB.
  CHECK(packet_memory_mib(network) == 64 + 66);
}

TEST_CASE("packets carry a CRC32C if they leave the machine, unless it is set otherwise") {
  const Words network{"--port", "net_tap0", "--address", "10.0.0.1/24"};
  const auto computes = [](Words arguments, const std::string& integrity) {
    arguments.push_back("--integrity=" + integrity);
    return computes_integrity(parse(arguments).config);
  };
  CHECK(computes(network, "auto"));
  CHECK_FALSE(computes(network, "off"));
  CHECK_FALSE(computes(valid({}), "auto"));
  CHECK(computes(valid({}), "on"));
}

TEST_CASE("addresses of interfaces") {
  CHECK(parse_interface_address("a", "10.0.0.2/24") == InterfaceAddress{0x0A00'0002, 24});
  CHECK(parse_interface_address("a", "192.168.255.255/8").prefix == 8);
  CHECK(parse_interface_address("a", "10.0.0.0/31").prefix == 31);
  CHECK(parse_interface_address("a", "10.0.0.255/32").prefix == 32);
  CHECK(to_string(InterfaceAddress{0xC0A8'0101, 16}) == "192.168.1.1/16");
  const auto routed = parse_interface_address("a", "10.0.0.2/24@10.0.0.1");
  CHECK(routed == InterfaceAddress{0x0A00'0002, 24, 0x0A00'0001});
  CHECK(to_string(routed) == "10.0.0.2/24@10.0.0.1");
  for (const char* const bad : {"10.0.0.2/24@", "10.0.0.2/24@10.0.1.1", "10.0.0.2/24@10.0.0.2",
                                "10.0.0.2/24@10.0.0.255", "10.0.0.2/24@x", "10.0.0.2/24@10.0.0.1@"})
    CHECK(error_of([&] { parse_interface_address("address", bad); }) ==
          "address must be a gateway that is another host of its network, not '" +
              std::string(bad) + "'");
  CHECK(InterfaceAddress{0x0A00'0002, 24}.same_network(0x0A00'00FE));
  CHECK_FALSE(InterfaceAddress{0x0A00'0002, 24}.same_network(0x0A00'0102));
  CHECK(InterfaceAddress{1, 32}.netmask() == 0xFFFF'FFFF);
  for (const char* const bad :
       {"", "10.0.0.2", "10.0.0/24", "10.0.0.256/24", "10.0.0.2/", "10.0.0.2/0", "10.0.0.2/33",
        "10.0.0.2/24x", "10.0.0.2/-1", "/24", "0.0.0.1/24", "224.0.0.1/24", "255.255.255.255/32",
        "10.0.0.0/24", "10.0.0.255/24", "::1/64", "10.0.0.2 /24", "010.0.0.2/24"}) {
    CAPTURE(bad);
    const std::string message = error_of([&] { parse_interface_address("address", bad); });
    CHECK_THAT(message,
               Catch::StartsWith("address") && Contains(" must be ") && Contains(", not '"));
  }
}

TEST_CASE("multicast groups are the addresses of a network") {
  const GroupRange groups = parse_groups("g", "239.255.74.0/24");
  CHECK(groups.first == 0xefff'4a00);
  CHECK(groups.count == 256);
  CHECK(to_string(groups) == "239.255.74.0/24");
  CHECK(parse_groups("g", "239.255.74.1/32").count == 1);
  CHECK(to_string(parse_groups("g", "239.64.0.0/10")) == "239.64.0.0/10");
  CHECK(to_string(GroupRange()).empty());
  CHECK(error_of([] { parse_groups("g", "239.255.74.1/24"); }) ==
        "g must be 239.255.74.0/24, the first address of its network, not '239.255.74.1/24'");
  for (const char* bad :
       {"", "239.255.74.0", "10.0.0.0/24", "224.0.0.0/24", "224.0.0.5/32", "239.255.74.0/7",
        "239.255.74.0/33", "232.1.2.0/24", "239.0.0.0/24", "239.128.0.7/32", "224.0.0.0/8",
        "238.0.0.0/9", "239.255.74.0/", "x/24"}) {
    CAPTURE(bad);
    CHECK_THAT(error_of([&] { parse_groups("g", bad); }),
               Catch::StartsWith("g") && Contains(" must be ") && Contains(", not '"));
  }
  CHECK_THAT(
      error_of(valid({"--multicast-groups", "239.255.74.0/24"})),
      Contains("multicast-groups = 239.255.74.0/24 (flag --multicast-groups): needs a port"));
  CHECK_THAT(error_of(valid({"--port-vlan", "7"})),
             Contains("port-vlan = 7 (flag --port-vlan): needs a port"));
  CHECK(parse({"--port", "net_tap0", "--address", "10.0.0.1/24", "--multicast-groups",
               "239.255.74.0/24"})
            .config.multicast_groups.count == 256);
}

TEST_CASE("addresses where a server listens") {
  const auto parsed = [](const char* text) { return parse_listen_address("m", text); };
  CHECK(parsed("9475").ipv4 == 0x7f00'0001);
  CHECK(parsed("9475").port == 9475);
  CHECK(parsed("0.0.0.0:0").ipv4 == 0);
  CHECK(parsed("10.0.0.9:65535").port == 65535);
  for (const char* const bad : {"", ":", ":9475", "localhost:9475", "10.0.0.9", "10.0.0.9:",
                                "10.0.0.9:65536", "9475:10.0.0.9", "-1", "10.0.0.9:80:80"}) {
    CAPTURE(bad);
    CHECK_THAT(error_of([&] { parse_listen_address("metrics-listen", bad); }),
               Contains("metrics-listen"));
  }
  CHECK(parse(valid({"--metrics-listen", ""})).config.metrics_listen.empty());

  const auto ports = [](const char* text) { return parse_listen_ports("m", text); };
  CHECK(ports("9410").last == 9410);
  CHECK(ports("10.0.0.2:9410+").first.ipv4 == 0x0a00'0002);
  CHECK(ports("10.0.0.2:9410+").first.port == 9410);
  CHECK(ports("65280+").last == 65535);
  for (const char* bad : {"0+", "65281+", "+", "9410++", "9410+1"})
    CHECK_THAT(error_of([&] { ports(bad); }), Contains("m"));
}

TEST_CASE("addresses of aggregators") {
  const auto parsed = [](const char* text) { return parse_aggregator_address("a", text); };
  CHECK(parsed("10.0.0.9") == AggregatorAddress(UdpAddress{0x0A00'0009, 4747}));
  CHECK(parsed("10.0.0.9:65535") == AggregatorAddress(UdpAddress{0x0A00'0009, 65535}));
  CHECK(parsed("vhost:/run/s:1") == AggregatorAddress(VhostDirectory{"/run/s:1"}));
  for (const char* const text : {"10.0.0.9:4747", "vhost:run/sluice"})
    CHECK(to_string(parsed(text)) == text);
  const std::string long_path = "vhost:/" + std::string(75, 'd');
  for (const char* const bad :
       {"", "vhost:", "vhost", "host.example", "10.0.0.9:", "10.0.0.9:0", "10.0.0.9:65536",
        "10.0.0.9:http", "10.0.0.9/24", "10.0.0", ":4747", "239.1.1.1", long_path.c_str()}) {
    CAPTURE(bad);
    CHECK_THAT(error_of([&] { parse_aggregator_address("SLUICE_AGGREGATORS", bad); }),
               Catch::StartsWith("SLUICE_AGGREGATORS") && Contains(" must be "));
  }
}

TEST_CASE("a launcher says how many ranks of the job it has started on this host") {
  const auto found = [](std::map<std::string, std::string> variables, std::uint16_t world_size) {
    return find_local_ranks(environment_of(std::move(variables)), world_size);
  };
  CHECK(!found({}, 4));
  CHECK(!found({{"RANK", "1"}, {"WORLD_SIZE", "4"}}, 4));
  CHECK(found({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}, 4) == 2);
  CHECK(!found({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}, 3));  // another job
  CHECK(!found({{"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}, 4));
  CHECK(found({{"SLUICE_RANK", "0"},
               {"SLUICE_WORLD_SIZE", "4"},
               {"SLUICE_LOCAL_WORLD_SIZE", "4"},
               {"RANK", "0"},
               {"WORLD_SIZE", "4"},
               {"LOCAL_WORLD_SIZE", "2"}},
              4) == 4);
  CHECK(found({{"OMPI_COMM_WORLD_RANK", "1"},
               {"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}},
              4) == 3);
  CHECK_THROWS_WITH(found({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "many"}}, 4),
                    Contains("LOCAL_WORLD_SIZE must be 1..256, not 'many'"));
}

TEST_CASE("the rank comes from Sluice's variables, else from the launcher") {
  const auto placed = [](std::map<std::string, std::string> variables) {
    const Placement placement = placement_from(environment_of(std::move(variables)));
    return std::pair<int, int>(placement.rank, placement.world_size);
  };
  const std::vector<std::pair<std::string, std::string>> launchers{
      {"SLUICE_RANK", "SLUICE_WORLD_SIZE"},
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"}};
  CHECK(placed({}) == std::pair(0, 1));

  std::map<std::string, std::string> all;
  for (int i = 4; i >= 0; --i) {  // each outranks those after it
    const auto& [rank, size] = launchers[static_cast<std::size_t>(i)];
    CHECK(placed({{rank, "255"}, {size, "256"}}) == std::pair(255, 256));
    all[rank] = std::to_string(i);
    all[size] = "8";
    CHECK(placed(all) == std::pair(i, 8));

    const auto message = [&, &rank = rank, &size = size](const char* rank_text,
                                                         const char* size_text) {
      return error_of([&] { placed({{rank, rank_text}, {size, size_text}}); });
    };
    CHECK(message("4", "4") == rank + " must be 0..3, not '4' (" + size + " is 4)");
    CHECK_THAT(message("-1", "4"), Contains(rank + " must be 0..3, not '-1'"));
    CHECK(message("0", "257") == size + " must be 1..256, not '257'");
    CHECK(message("0", "0") == size + " must be 1..256, not '0'");
    CHECK_THAT(message("one", "4"), Contains("not 'one'"));
  }
  CHECK_THAT(error_of([&] {
               placed({{"SLUICE_RANK", "1"}, {"WORLD_SIZE", "4"}});
             }),
             Contains("SLUICE_RANK = '1' is set, but SLUICE_WORLD_SIZE is not"));
  CHECK_THAT(error_of([&] {
               placed({{"SLUICE_WORLD_SIZE", "2"}});
             }),
             Contains("SLUICE_WORLD_SIZE = '2' is set, but SLUICE_RANK is not"));
  CHECK(placed({{"RANK", "1"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}) == std::pair(0, 2));
}

TEST_CASE("an empty variable counts as unset") {
  setenv("CONFIG_TEST_VARIABLE", "", 1);
  CHECK(process_environment("CONFIG_TEST_VARIABLE") == std::nullopt);
  setenv("CONFIG_TEST_VARIABLE", "x", 1);
  CHECK(process_environment("CONFIG_TEST_VARIABLE") == "x");
  unsetenv("CONFIG_TEST_VARIABLE");
  CHECK(process_environment("CONFIG_TEST_VARIABLE") == std::nullopt);
}

TEST_CASE("a log file gets time, level and name, from its level on") {
  const Directory directory;
  const std::string path = directory.path() + "/a.log";
  const auto logger = make_logger({"part", LogLevel::kWarn, path});
  logger->info("hidden");
  logger->error("seen {}", 7);
  std::ifstream file(path);
  Words lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             Catch::Matches("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+[+-][0-9:]+ error part: seen 7"));
}

TEST_CASE("every log level is passed on") {
  const std::array<spdlog::level::level_enum, 5> expected{spdlog::level::trace,
                                                          spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(make_logger({"part", kLogLevelChoices[i].first, ""})->level() == expected[i]);
}

TEST_CASE("a full disk costs lines of the log, and nothing else") {
  const std::uint64_t before = log_write_failures();
  const auto logger = make_logger({"part", LogLevel::kInfo, "/dev/full"});
  for (int i = 0; i < 100; ++i) CHECK_NOTHROW(logger->info("{}", std::string(1000, 'x')));
  CHECK(log_write_failures() >= before + 100);
}

TEST_CASE("a log file that cannot be opened is an error") {
  const Directory directory;
  try {
    make_logger({"part", LogLevel::kInfo, directory.file("plain", "") + "/a.log"});
    FAIL("opened");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    CHECK_THAT(error.what(), Contains("log-file '") && Contains("/plain/a.log'"));
  }
}

}  // namespace sluice::config::config_tests
