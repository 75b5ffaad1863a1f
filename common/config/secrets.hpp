// Where jobs' secrets come from: files that only their owner may read, or the environment. Never
// flags, which every user of the machine sees. No error and no log line quotes a secret.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/config/environment.hpp"
#include "common/protocol/secret.hpp"

namespace sluice::config {

/// The secrets that an aggregator knows. Loaded as a whole, then only read.
class SecretStore {
 public:
  /// Knows no secret: any worker may join.
  SecretStore() = default;
  explicit SecretStore(Secret of_all_jobs)
      : of_others_(std::make_shared<const Secret>(std::move(of_all_jobs))) {}

  /// From a file with a line "JOB SECRET" per job, of its id or its name, and "* SECRET" for all
  /// jobs that have no line; empty lines and lines that begin with # mean nothing. Throws
  /// kInvalidArgument that names the file, what is wrong with it, and the line.
  static SecretStore from_file(const std::string& path);

  /// Null: the job has no secret. The secret may outlive the store.
  std::shared_ptr<const Secret> find(std::uint32_t job) const;
  bool empty() const { return jobs_.empty() && !of_others_; }

  /// "secrets of 2 jobs and of all others".
  std::string describe() const;

  /// The same secrets of the same jobs.
  friend bool operator==(const SecretStore& a, const SecretStore& b);

 private:
  void add(std::string_view line);

  std::map<std::uint32_t, std::shared_ptr<const Secret>> jobs_;
  std::shared_ptr<const Secret> of_others_;
};

/// What the setting secret-file names, or if it is empty the variable SLUICE_AGGREGATOR_SECRET,
/// which then is the secret of all jobs. Throws kInvalidArgument if both are set.
SecretStore aggregator_secrets(const std::string& secret_file, const Environment& environment);

/// The job's secret as a worker has it: SLUICE_SECRET, or the first line of the file that
/// SLUICE_SECRET_FILE names. Throws kInvalidArgument if both are set.
std::optional<Secret> worker_secret(const Environment& environment = process_environment);

}  // namespace sluice::config
