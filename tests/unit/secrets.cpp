// Where secrets come from, what is wrong with files of them, and that nothing tells one; and the
// settings that change while a daemon runs.
#include "common/config/secrets.hpp"

#include <sstream>

#include "common/config/job_name.hpp"
#include "common/config/reload.hpp"
#include "tests/unit/config_parts.hpp"

namespace sluice::config::secrets_tests {
namespace {

const std::string kOne = "0123456789abcdef";
const std::string kTwo = "a-secret/of+text#and=signs";
const std::string kThree = "ffffffffffffffffffffffff";

/// A file in a directory of its own, with the mode that a secret needs.
class SecretFile {
 public:
  explicit SecretFile(const std::string& text, unsigned mode = 0600) { write(text, mode); }

  void write(const std::string& text, unsigned mode = 0600) const {
    directory_.file("secrets", text);
    fs::permissions(path(), static_cast<fs::perms>(mode));
  }
  std::string path() const { return directory_.path() + "/secrets"; }

 private:
  Directory directory_;
};

SecretStore store_of(const std::string& text) {
  return SecretStore::from_file(SecretFile(text).path());
}

/// The error about a file with this text, from its name on.
std::string error_about(const std::string& text) {
  const std::string error = error_of([&] { store_of(text); });
  CHECK_THAT(error, !Contains(kOne) && !Contains(kTwo) && !Contains(kThree));
  return error.substr(error.find("secrets") + 7);
}

bool is(const std::shared_ptr<const Secret>& secret, const std::string& text) {
  return secret != nullptr && *secret == Secret(text);
}

ReloadOutcome reload(const ParseOutcome& running, const Words& arguments,
                     Variables variables = {}) {
  std::vector<const char*> argv{"sluice-aggregator"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return reload_aggregator(running.config, running.secrets, static_cast<int>(argv.size()),
                           argv.data(), environment_of(std::move(variables)));
}

}  // namespace

TEST_CASE("a file has the secrets of jobs and of all others") {
  const SecretStore store =
      store_of("# of the jobs\n\n7 " + kOne + "\n  4294967295\t" + kTwo + "  \r\n * " + kThree);
  CHECK(is(store.find(7), kOne));
  CHECK(is(store.find(4294967295), kTwo));
  CHECK(is(store.find(0), kThree));
  CHECK(store.describe() == "secrets of 2 jobs and of all others");
  const SecretStore named = store_of("bert-large " + kOne + "\n7x " + kTwo);
  CHECK(is(named.find(108'174'750), kOne));
  CHECK(is(named.find(config::parse_job("job", "7x")), kTwo));
  CHECK(named.find(7) == nullptr);
  const SecretStore few = store_of("7 " + kOne);
  CHECK(is(few.find(7), kOne));
  CHECK(few.find(8) == nullptr);
  CHECK(SecretStore().find(7) == nullptr);
  CHECK(SecretStore().empty());
  CHECK_FALSE(few.empty());
}

TEST_CASE("stores are the same if they hold the same secrets") {
  const std::string both = "7 " + kOne + "\n* " + kTwo;
  CHECK(store_of(both) == store_of("* " + kTwo + "\n7 " + kOne));
  CHECK(SecretStore() == SecretStore());
  CHECK_FALSE(store_of(both) == store_of("7 " + kOne));
  CHECK_FALSE(store_of(both) == store_of("* " + kTwo));
  CHECK_FALSE(store_of(both) == store_of("8 " + kOne + "\n* " + kTwo));
  CHECK_FALSE(store_of(both) == store_of("7 " + kThree + "\n* " + kTwo));
  CHECK_FALSE(store_of(both) == store_of("7 " + kOne + "\n* " + kThree));
  CHECK_FALSE(store_of("* " + kOne) == SecretStore());
}

TEST_CASE("what is wrong with a file is told with its line, and no secret is") {
  const std::string form =
      ": must be JOB SECRET, with the job's id or name, or * SECRET for all other jobs";
  CHECK(error_about("7 " + kOne + "\n\n" + kTwo) == ":3" + form);
  CHECK(error_about(kTwo + " 7") == ":1: a secret has 16..256 bytes, not 1");
  CHECK(error_about("_" + kTwo + " 7") == ":1" + form);
  CHECK(error_about("-1 " + kOne) == ":1" + form);
  CHECK(error_about("4294967296 " + kOne) == ":1" + form);
  CHECK(error_about("7") == ":1" + form);
  CHECK(error_about("7 short") == ":1: a secret has 16..256 bytes, not 5");
  CHECK(error_about("7 " + std::string(257, 'x')) == ":1: a secret has 16..256 bytes, not 257");
  CHECK(error_about("7 " + kOne + " " + kTwo) == ":1: a secret has no blanks");
  CHECK(error_about("7 " + kOne + "\n7 " + kTwo) == ":2: job 7 has a secret already");
  CHECK(error_about(kTwo + " " + kOne + "\n" + kTwo + " " + kThree) ==
        ":2: job 3630986677 has a secret already: that is the id of this line's name");
  CHECK(error_about("* " + kOne + "\n* " + kTwo) == ":2: job * has a secret already");
  CHECK_THAT(error_about("# nothing\n"), Contains("has no secret"));
  CHECK_THAT(error_about(std::string(70'000, '#')), Contains("must be smaller than 65536 bytes"));
}

TEST_CASE("a file of secrets is its owner's alone") {
  for (const unsigned mode : {0640u, 0604u, 0620u, 0601u, 0644u}) {
    const SecretFile file("* " + kOne, mode);
    const std::string error = error_of([&] { SecretStore::from_file(file.path()); });
    std::ostringstream octal;
    octal << "has mode 0" << std::oct << mode << ", so others may read or change it: it must have "
          << "0600";
    CHECK_THAT(error, Contains(octal.str()) && Contains(file.path()));
  }
  CHECK_NOTHROW(SecretStore::from_file(SecretFile("* " + kOne, 0400).path()));
  const Directory directory;
  const auto error_of_path = [](const std::string& path) {
    return error_of([&] { SecretStore::from_file(path); });
  };
  CHECK_THAT(error_of_path(directory.path()), Contains("must be a regular file"));
  CHECK_THAT(error_of_path(directory.path() + "/none"), Contains("No such file"));
}

TEST_CASE("the daemon's secrets are those of a file or one of the environment") {
  const SecretFile file("7 " + kOne);
  const Variables variables{{"SLUICE_AGGREGATOR_SECRET", kTwo}};
  CHECK(is(parse(valid({"--secret-file", file.path()})).secrets.find(7), kOne));
  CHECK(is(parse(valid({}), variables).secrets.find(7), kTwo));
  CHECK(parse(valid({})).secrets.empty());
  CHECK(error_of(valid({"--secret-file", file.path()}), variables) ==
        "secret-file and the variable SLUICE_AGGREGATOR_SECRET are set: set one of them"
        " (flag --secret-file)");
  CHECK(error_of(valid({}), {{"SLUICE_AGGREGATOR_SECRET", "short"}}) ==
        "SLUICE_AGGREGATOR_SECRET: a secret has 16..256 bytes, not 5");
  file.write("8 short");
  CHECK(error_of(valid({"--secret-file", file.path()})) ==
        "secret-file: " + file.path() +
            ":1: a secret has 16..256 bytes, not 5 (flag --secret-file)");
  CHECK_THAT(error_of(valid({"--secret", kTwo})), Contains("unknown flag 'secret'"));
  CHECK(error_of(valid({"--authenticate-packets"})) ==
        "authenticate-packets = on (flag --authenticate-packets): needs secret-file or"
        " SLUICE_AGGREGATOR_SECRET");
  CHECK(error_of(valid({"--encrypt-packets"})) ==
        "encrypt-packets = on (flag --encrypt-packets): needs secret-file or"
        " SLUICE_AGGREGATOR_SECRET");
}

TEST_CASE("--check-config says how many secrets there are, and none of them") {
  const SecretFile file("7 " + kOne + "\n8 " + kTwo);
  const std::string text = parse(valid({"--check-config", "--secret-file", file.path()})).text;
  CHECK_THAT(text, Contains("secret-file = " + file.path() + "  # flag --secret-file\n"));
  CHECK_THAT(text, Contains("# secrets of 2 jobs\n"));
  CHECK_THAT(text, !Contains(kOne) && !Contains(kTwo));
  CHECK_THAT(parse(valid({"--check-config"})).text, Contains("# no secrets\n"));
}

TEST_CASE("a worker's secret is a text or the first line of a file") {
  const auto secret_of = [](Variables variables) {
    return worker_secret(environment_of(std::move(variables)));
  };
  const SecretFile file("  " + kOne + " \nand more");
  CHECK_FALSE(secret_of({}));
  CHECK(secret_of({{"SLUICE_SECRET", kTwo}}) == Secret(kTwo));
  CHECK(secret_of({{"SLUICE_SECRET_FILE", file.path()}}) == Secret(kOne));
  CHECK(error_of([&] {
          secret_of({{"SLUICE_SECRET", kTwo}, {"SLUICE_SECRET_FILE", "/x"}});
        }) == "SLUICE_SECRET and SLUICE_SECRET_FILE are set: set one");
  CHECK(error_of([&] {
          secret_of({{"SLUICE_SECRET", "short"}});
        }) == "SLUICE_SECRET: a secret has 16..256 bytes, not 5");
  CHECK(error_of([&] {
          secret_of({{"SLUICE_SECRET", kOne + " " + kTwo}});
        }) == "SLUICE_SECRET: a secret has no blanks");
  file.write(kOne, 0644);
  CHECK_THAT(error_of([&] {
               secret_of({{"SLUICE_SECRET_FILE", file.path()}});
             }),
             Catch::StartsWith("SLUICE_SECRET_FILE: '" + file.path() + "' has mode 0644"));
  file.write("* " + kOne);  // the daemon's
  CHECK_THAT(error_of([&] {
               secret_of({{"SLUICE_SECRET_FILE", file.path()}});
             }),
             Catch::StartsWith("SLUICE_SECRET_FILE: the first line of '" + file.path() +
                               "' must be a secret without blanks") &&
                 !Contains(kOne));
  file.write("");
  CHECK_THAT(error_of([&] {
               secret_of({{"SLUICE_SECRET_FILE", file.path()}});
             }),
             Contains("a secret has 16..256 bytes, not 0"));
}

// -------------------------------------------------------------------------------------- reload
TEST_CASE("a reload of the same settings changes nothing") {
  const Words arguments = valid({"--log-level", "warn", "--", "--vdev", "net_null0"});
  const ParseOutcome running = parse(arguments);
  const ReloadOutcome outcome = reload(running, arguments);
  CHECK(outcome.applied.empty());
  CHECK(outcome.needs_restart.empty());
  CHECK(outcome.config.log_level == LogLevel::kWarn);
}

TEST_CASE("a reload applies what may change and names what may not") {
  const Directory directory;
  const std::string path = directory.file("a.conf", "log-level = info\nmax-jobs = 3\n");
  const Words arguments = valid({"--config", path});
  const ParseOutcome running = parse(arguments);
  directory.file("a.conf", "log-level = debug\nmax-jobs = 3\nstreams = 8\neal-args = -n 4\n");
  const ReloadOutcome outcome = reload(running, arguments);
  CHECK(outcome.applied == Words{"log-level = debug, was info"});
  CHECK(outcome.needs_restart == Words{"streams = 8, was 64", "eal-args = -n 4, was none"});
  CHECK(outcome.config.log_level == LogLevel::kDebug);
  CHECK(outcome.config.max_jobs == 3);
  CHECK(outcome.config.streams == 64);
  CHECK(outcome.config.eal_args.empty());
}

TEST_CASE("every setting that is marked reloadable is applied") {
  const SecretFile file("* " + kOne);
  const Words others{"--max-jobs",         "17",   "--reply-rate-limit",     "18",
                     "--drain-timeout-ms", "19",   "--straggler-warning-ms", "20",
                     "--log-level",        "warn", "--log-rate-limit",       "21",
                     "--stats-interval-s", "22",   "--secret-file",          file.path()};
  const ParseOutcome running = parse(valid({}));
  const ReloadOutcome outcome = reload(running, valid(others));
  std::size_t reloadable = 0;
  for (const AggregatorSetting& setting : aggregator_settings()) {
    if (!setting.reloadable) continue;
    ++reloadable;
    CAPTURE(setting.name);
    CHECK(shown(outcome.config, setting.name) != shown(running.config, setting.name));
  }
  CHECK(outcome.applied.size() == reloadable + 1);
  CHECK(outcome.applied.back() == "secrets read again: a secret of all jobs");
  CHECK(outcome.needs_restart.empty());
}

TEST_CASE("secrets are read again though the file's name is the same") {
  const SecretFile file("7 " + kOne);
  const Words arguments = valid({"--secret-file", file.path()});
  const ParseOutcome running = parse(arguments);
  CHECK(reload(running, arguments).applied.empty());
  file.write("7 " + kTwo + "\n8 " + kThree);
  const ReloadOutcome outcome = reload(running, arguments);
  CHECK(outcome.applied == Words{"secrets read again: secrets of 2 jobs"});
  CHECK(is(outcome.secrets.find(7), kTwo));
  CHECK(is(outcome.secrets.find(8), kThree));
}

TEST_CASE("a bad reload throws, whether by itself or with what stays") {
  const SecretFile file("* " + kOne);
  const Words secured = valid({"--authenticate-packets", "--secret-file", file.path()});
  const ParseOutcome running = parse(secured);
  CHECK_THAT(error_of([&] {
               reload(running, valid({"--max-jobs", "0"}));
             }),
             Contains("max-jobs must be 1..4096, not '0'"));
  file.write("* short");
  CHECK_THAT(error_of([&] { reload(running, secured); }), Contains(":1: a secret has 16..256"));
  CHECK(error_of([&] { reload(running, valid({})); }) ==
        "authenticate-packets = on (after the reload): needs secret-file or"
        " SLUICE_AGGREGATOR_SECRET");
}

}  // namespace sluice::config::secrets_tests
