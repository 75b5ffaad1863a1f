#include <cstdlib>
#include <map>

#include <sluice/sluice.hpp>

#include "common/base/limits.hpp"
#include "common/config/address.hpp"
#include "tests/unit/catch.hpp"
#include "worker/config/worker_settings.hpp"

namespace sluice::environment_tests {
namespace {

using Catch::Contains;
using std::chrono::microseconds;
using std::chrono::milliseconds;

using Values = std::map<std::string, std::string>;

/// Sets variables for as long as it lives.
class Variables {
 public:
  explicit Variables(Values values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  Values values_;
};

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

struct Edge {
  const char* variable;
  const char* good;
  const char* bad;
  const char* range;
};

}  // namespace

TEST_CASE("without variables, options have their defaults") {
  const auto context = ContextOptions::from_environment();
  CHECK(context.aggregators.empty());
  CHECK(context.mtu == 0);
  CHECK(context.host_level);
  CHECK(context.idle == "backoff");
  const auto job = JobOptions::from_environment();
  CHECK(job.rank == 0);
  CHECK(job.world_size == 1);
  CHECK(job.aggregator_timeout == milliseconds(5000));
}

TEST_CASE("public defaults are those of the engines") {
  const JobOptions job;
  CHECK(job.block_elements == defaults::kBlockElements);
  CHECK(job.join_timeout == defaults::kJoinTimeout);
  CHECK(job.aggregator_timeout == defaults::kAggregatorTimeout);
  CHECK(job.retransmit_timeout_min == defaults::kRetransmitTimeoutMin);
  CHECK(job.round_trip_max == defaults::kRoundTripMax);
}

TEST_CASE("every variable reaches its option") {
  const Variables variables({{"SLUICE_AGGREGATORS", "vhost:/run/a|vhost:/run/b, 10.0.0.9:5000"},
                             {"SLUICE_CONNECT_TIMEOUT_MS", "500"},
                             {"SLUICE_FAULTS", "seed=7,loss=0.01"},
                             {"SLUICE_METRICS_LISTEN", "10.0.0.2:9410+"},
                             {"SLUICE_PORT", "net_af_packet0,iface=veth1"},
                             {"SLUICE_ADDRESS", "10.0.0.2/24"},
                             {"SLUICE_MTU", "1500"},
                             {"SLUICE_VLAN", "7"},
                             {"SLUICE_MEMORY_MIB", "256"},
                             {"SLUICE_HUGEPAGES", "1"},
                             {"SLUICE_HOST_LEVEL", "0"},
                             {"SLUICE_IDLE", "busy-spin"},
                             {"SLUICE_LOG", "debug"},
                             {"SLUICE_TIMELINE", "/tmp/trace.%r.json"},
                             {"SLUICE_EAL_ARGS", "-n 4  --no-telemetry"},
                             {"SLUICE_RANK", "3"},
                             {"SLUICE_WORLD_SIZE", "4"},
                             {"SLUICE_JOB", "4294967295"},
                             {"SLUICE_BLOCK_ELEMENTS", "128"},
                             {"SLUICE_STREAMS", "32"},
                             {"SLUICE_HISTORY", "16"},
                             {"SLUICE_JOIN_TIMEOUT_MS", "1000"},
                             {"SLUICE_AGGREGATOR_TIMEOUT_MS", "2000"},
                             {"SLUICE_OP_TIMEOUT_MS", "700"},
                             {"SLUICE_RETRANSMIT_TIMEOUT_MIN_US", "3000"},
                             {"SLUICE_ROUND_TRIP_MAX_US", "200"}});
  const auto context = ContextOptions::from_environment();
  CHECK(context.aggregators ==
        std::vector<std::string>{"vhost:/run/a|vhost:/run/b", "10.0.0.9:5000"});
  CHECK(context.connect_timeout == milliseconds(500));
  CHECK(context.faults == "seed=7,loss=0.01");
  CHECK(context.metrics_listen == "10.0.0.2:9410+");
  CHECK(context.port == "net_af_packet0,iface=veth1");
  CHECK(context.address == "10.0.0.2/24");
  CHECK(context.mtu == 1500);
  CHECK(context.vlan == 7);
  CHECK(context.memory_mib == 256);
  CHECK(context.hugepages);
  CHECK(!context.host_level);
  CHECK(context.idle == "busy-spin");
  CHECK(context.log_level == "debug");
  CHECK(context.timeline == "/tmp/trace.%r.json");
  CHECK(context.eal_args == std::vector<std::string>{"-n", "4", "--no-telemetry"});
  CHECK_NOTHROW(validate(context));
  const auto job = JobOptions::from_environment();
  CHECK(job.rank == 3);
  CHECK(job.world_size == 4);
  CHECK(job.job == 4'294'967'295);
  CHECK(job.block_elements == 128);
  CHECK(job.streams == 32);
  CHECK(job.history == 16);
  CHECK(job.join_timeout == milliseconds(1000));
  CHECK(job.aggregator_timeout == milliseconds(2000));
  CHECK(job.op_timeout == milliseconds(700));
  CHECK(job.retransmit_timeout_min == microseconds(3000));
  CHECK(job.round_trip_max == microseconds(200));
  CHECK_NOTHROW(validate(job));
}

TEST_CASE("a value beyond its range is refused with variable, value and range") {
  const std::vector<Edge> edges{
      {"SLUICE_AGGREGATORS", "10.0.0.9", "10.0.0.9,nowhere", "vhost:DIRECTORY or a unicast IPV4"},
      {"SLUICE_CONNECT_TIMEOUT_MS", "100", "99", "100..600000"},
      {"SLUICE_CONNECT_TIMEOUT_MS", "600000", "600001", "100..600000"},
      {"SLUICE_FAULTS", "loss=0", "loss=2", "list of seed=N, loss=P"},
      {"SLUICE_ADDRESS", "10.0.0.2/32", "10.0.0.2", "a unicast IPV4/PREFIX"},
      {"SLUICE_MTU", "576", "575", "0 or 576..9698"},
      {"SLUICE_MTU", "9698", "9699", "0 or 576..9698"},
      {"SLUICE_VLAN", "0", "-1", "0..4094"},
      {"SLUICE_VLAN", "4094", "4095", "0..4094"},
      {"SLUICE_MEMORY_MIB", "16", "15", "0 or 16..1048576"},
      {"SLUICE_MEMORY_MIB", "1048576", "1048577", "0 or 16..1048576"},
      {"SLUICE_HUGEPAGES", "off", "maybe", "on or off"},
      {"SLUICE_HOST_LEVEL", "on", "maybe", "on or off"},
      {"SLUICE_IDLE", "yield", "sleep", "busy-spin|yield|backoff"},
      {"SLUICE_LOG", "error", "loud", "trace|debug|info|warn|error"},
      {"SLUICE_JOB", "0", "-1", "0..4294967295"},
      {"SLUICE_JOB", "4294967295", "4294967296", "0..4294967295"},
      {"SLUICE_JOB", "bert-large", "bert large", "0..4294967295, or a name of 1..64 printable"},
      {"SLUICE_BLOCK_ELEMENTS", "1", "0", "1..16384"},
      {"SLUICE_BLOCK_ELEMENTS", "16384", "16385", "1..16384"},
      {"SLUICE_STREAMS", "0", "-1", "0..1024"},
      {"SLUICE_STREAMS", "1024", "1025", "0..1024"},
      {"SLUICE_HISTORY", "0", "1", "0 or a power of two, 2..64"},
      {"SLUICE_HISTORY", "64", "24", "0 or a power of two, 2..64"},
      {"SLUICE_JOIN_TIMEOUT_MS", "1", "0", "1..3600000"},
      {"SLUICE_JOIN_TIMEOUT_MS", "3600000", "3600001", "1..3600000"},
      {"SLUICE_AGGREGATOR_TIMEOUT_MS", "100", "99", "100..600000"},
      {"SLUICE_AGGREGATOR_TIMEOUT_MS", "600000", "600001", "100..600000"},
      {"SLUICE_OP_TIMEOUT_MS", "0", "-1", "0..86400000"},
      {"SLUICE_OP_TIMEOUT_MS", "86400000", "86400001", "0..86400000"},
      {"SLUICE_RETRANSMIT_TIMEOUT_MIN_US", "100", "99", "100..10000000"},
      {"SLUICE_RETRANSMIT_TIMEOUT_MIN_US", "10000000", "1e3", "100..10000000"},
      {"SLUICE_ROUND_TRIP_MAX_US", "10", "9", "10..10000000"},
      {"SLUICE_ROUND_TRIP_MAX_US", "10000000", "10000001", "10..10000000"},
  };
  const auto read = [] {
    ContextOptions::from_environment();
    JobOptions::from_environment();
  };
  for (const Edge& edge : edges) {
    CAPTURE(edge.variable, edge.bad);
    {
      const Variables variables(Values{{edge.variable, edge.good}});
      CHECK_NOTHROW(read());
    }
    const Variables variables(Values{{edge.variable, edge.bad}});
    const std::string message = error_of(read);
    CHECK_THAT(message, Catch::StartsWith(edge.variable) && Contains(edge.range));
    CHECK_THAT(message,
               Contains(std::string(edge.bad).substr(std::string(edge.bad).find(',') + 1)));
  }
}

TEST_CASE("a misspelt variable is refused") {
  const Variables variables(Values{{"SLUICE_WORLDSIZE", "2"}});
  const std::string refusal =
      "the environment has SLUICE_WORLDSIZE: did you mean SLUICE_WORLD_SIZE?";
  CHECK(error_of([] { ContextOptions::from_environment(); }) == refusal);
  CHECK(error_of([] { JobOptions::from_environment(); }) == refusal);
}

TEST_CASE("variables of the daemon, and empty ones, may be set beside the library's") {
  const Variables variables({{"SLUICE_AGGREGATOR_LANES", "2"},
                             {"SLUICE_AGGREGATOR_UDP_PORT", "4748"},
                             {"SLUICE_WORLDSIZE", ""}});
  CHECK_NOTHROW(ContextOptions::from_environment());
  CHECK_NOTHROW(JobOptions::from_environment());
}

TEST_CASE("a job has a number or a name") {
  CHECK(JobId().number() == 0);
  JobOptions job;
  job.job = 7;
  CHECK(job.job == 7);
  CHECK(job.job.text() == "7");
  CHECK(job.job.name().empty());
  job.set("job", "bert-large");
  CHECK(job.job.number() == 108'174'750);
  CHECK(job.job.text() == "bert-large");
  CHECK(job.job.name() == "bert-large");
  CHECK_NOTHROW(validate(job));
  job.job = std::string("007");
  CHECK(job.job.text() == "7");
  CHECK_THAT(error_of([&] { job.job = "no name"; }),
             Catch::StartsWith("job must be 0..4294967295, or a name of 1..64") &&
                 Contains("not 'no name'"));
  CHECK(job.job == 7);
  const Variables variables(Values{{"SLUICE_JOB", "bert-large"}});
  CHECK(JobOptions::from_environment().job.name() == "bert-large");
}

TEST_CASE("an aggregator's standbys follow it, each another address") {
  using namespace config;
  const auto parsed = parse_aggregator_addresses("a", "vhost:/run/a|10.0.0.9|vhost:/run/b");
  CHECK(parsed == std::vector<AggregatorAddress>{VhostDirectory{"/run/a"},
                                                 UdpAddress{0x0A00'0009, kDefaultUdpPort},
                                                 VhostDirectory{"/run/b"}});
  CHECK(parse_aggregator_addresses("a", "10.0.0.9").size() == 1);
  for (const char* const bad : {"", "|", "vhost:/a|", "|vhost:/a", "vhost:/a||vhost:/b", "a|b"}) {
    CAPTURE(bad);
    CHECK_THAT(error_of([&] { parse_aggregator_addresses("a", bad); }),
               Contains("vhost:DIRECTORY or a unicast IPV4"));
  }
  CHECK_THAT(error_of([&] { parse_aggregator_addresses("a", "10.0.0.9|10.0.0.9:4747"); }),
             Contains("different addresses between '|', not '10.0.0.9|10.0.0.9:4747'"));
}

TEST_CASE("the launcher's rank is taken") {
  const Variables variables({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  CHECK(JobOptions::from_environment().rank == 1);
  CHECK(JobOptions::from_environment().world_size == 2);
}

TEST_CASE("options filled in by a program are checked too") {
  ContextOptions context;
  CHECK_NOTHROW(validate(context));  // the ranks of one host
  context.host_level = false;
  CHECK_THAT(error_of([&] { validate(context); }),
             Contains("ContextOptions::aggregators (SLUICE_AGGREGATORS) is empty, and host_level"));
  context.host = "a/b";
  CHECK_THAT(error_of([&] { validate(context); }), Contains("ContextOptions::host must be"));
  context.host = "node-1.rack_2";
  context.aggregators = {"vhost:/run/a"};
  CHECK_NOTHROW(validate(context));
  context.aggregators.emplace_back("10.0.0.9");
  CHECK_THAT(error_of([&] { validate(context); }), Contains("ContextOptions::port (SLUICE_PORT)"));
  context.aggregators = {"vhost:/run/a|10.0.0.9"};
  CHECK_THAT(error_of([&] { validate(context); }), Contains("ContextOptions::port (SLUICE_PORT)"));
  context.aggregators = {"vhost:/run/a", "10.0.0.9"};
  context.port = "net_tap0";
  CHECK_THAT(error_of([&] { validate(context); }),
             Contains("ContextOptions::address (SLUICE_ADDRESS) is empty: aggregator '10.0.0.9'"));
  context.address = "10.0.0.2/24";
  CHECK_NOTHROW(validate(context));
  context.mtu = 100;
  CHECK(error_of([&] { validate(context); }) ==
        "ContextOptions::mtu must be 0 or 576..9698, not '100'");

  JobOptions job;
  CHECK_NOTHROW(validate(job));
  job.rank = 1;
  CHECK(error_of([&] { validate(job); }) ==
        "JobOptions::rank must be below world_size = 1, not '1'");
  job.world_size = 257;
  CHECK(error_of([&] { validate(job); }) == "JobOptions::world_size must be 1..256, not '257'");
  job = {};
  job.history = 3;
  CHECK_THAT(error_of([&] { validate(job); }), Contains("JobOptions::history"));
}

}  // namespace sluice::environment_tests
