#include "common/config/secrets.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/limits.hpp"
#include "common/config/job_name.hpp"
#include "common/config/value.hpp"

namespace sluice::config {
namespace {

constexpr const char* kOfAllJobs = "SLUICE_AGGREGATOR_SECRET";
constexpr const char* kOfWorker = "SLUICE_SECRET";
constexpr const char* kFileOfWorker = "SLUICE_SECRET_FILE";

/// What a file says, wiped when it goes.
struct PrivateText {
  std::array<char, limits::kMaxSecretFileBytes> bytes;
  std::size_t size = 0;

  PrivateText() = default;
  PrivateText(const PrivateText&) = delete;
  PrivateText& operator=(const PrivateText&) = delete;
  ~PrivateText() { sodium_memzero(bytes.data(), size); }
};

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

std::string mode_of(const struct stat& facts) {
  std::array<char, 8> octal;
  std::snprintf(octal.data(), octal.size(), "%04o", facts.st_mode & 07777u);
  return octal.data();
}

void read_private(const std::string& path, PrivateText& text) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat facts {};
  if (file.fd < 0 || fstat(file.fd, &facts) != 0) fail("'" + path + "': " + std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) fail("'" + path + "' must be a regular file");
  if ((facts.st_mode & 077) != 0)
    fail("'" + path + "' has mode " + mode_of(facts) +
         ", so others may read or change it: it must have 0600");
  while (text.size < text.bytes.size()) {
    const ssize_t got = read(file.fd, text.bytes.data() + text.size, text.bytes.size() - text.size);
    if (got < 0) fail("'" + path + "': " + std::strerror(errno));
    if (got == 0) return;
    text.size += static_cast<std::size_t>(got);
  }
  fail("'" + path + "' must be smaller than " + std::to_string(text.size) + " bytes");
}

/// Takes the first line off `text`, without the blanks around it.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  return line.substr(0, line.find_last_not_of(kBlanks) + 1);
}

Secret secret_of(std::string_view text) {
  if (text.find_first_of(kBlanks) != text.npos) fail("a secret has no blanks");
  return Secret(text);
}

/// `make()`, with what it is about before its error.
template <class Make>
auto about(const std::string& subject, const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw Error(error.code(), subject + ": " + error.what());
  }
}

}  // namespace

SecretStore SecretStore::from_file(const std::string& path) {
  PrivateText text;
  read_private(path, text);
  SecretStore store;
  std::string_view rest(text.bytes.data(), text.size);
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = next_line(rest);
    if (line.empty() || line.front() == '#') continue;
    about(path + ":" + std::to_string(number), [&] { store.add(line); });
  }
  if (store.empty()) fail("'" + path + "' has no secret: it needs lines of JOB SECRET or * SECRET");
  return store;
}

void SecretStore::add(std::string_view line) {
  const std::size_t end = line.find_first_of(kBlanks);
  const std::string_view name = line.substr(0, end);
  const std::optional<std::uint32_t> job = job_id_of(name);
  if (end == line.npos || !(job || name == "*"))
    fail("must be JOB SECRET, with the job's id or name, or * SECRET for all other jobs");
  std::shared_ptr<const Secret>& place = job ? jobs_[*job] : of_others_;
  if (place)  // no name is quoted: if name and secret are swapped, it is the secret
    fail("job " + (job ? std::to_string(*job) : "*") + " has a secret already" +
         (job && !is_job_number(name) ? ": that is the id of this line's name" : ""));
  place =
      std::make_shared<const Secret>(secret_of(line.substr(line.find_first_not_of(kBlanks, end))));
}

std::shared_ptr<const Secret> SecretStore::find(std::uint32_t job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? of_others_ : found->second;
}

bool operator==(const SecretStore& a, const SecretStore& b) {
  const auto same = [](const auto& x, const auto& y) { return x && y ? *x == *y : x == y; };
  return same(a.of_others_, b.of_others_) &&
         std::equal(a.jobs_.begin(), a.jobs_.end(), b.jobs_.begin(), b.jobs_.end(),
                    [&](const auto& x, const auto& y) {
                      return x.first == y.first && same(x.second, y.second);
                    });
}

std::string SecretStore::describe() const {
  if (empty()) return "no secrets";
  if (jobs_.empty()) return "a secret of all jobs";
  return "secrets of " + std::to_string(jobs_.size()) + (jobs_.size() == 1 ? " job" : " jobs") +
         (of_others_ ? " and of all others" : "");
}

SecretStore aggregator_secrets(const std::string& secret_file, const Environment& environment) {
  const auto of_all_jobs = environment(kOfAllJobs);
  if (of_all_jobs && !secret_file.empty())
    fail(std::string("secret-file and the variable ") + kOfAllJobs + " are set: set one of them");
  if (of_all_jobs) return about(kOfAllJobs, [&] { return SecretStore(secret_of(*of_all_jobs)); });
  if (secret_file.empty()) return {};
  return about("secret-file", [&] { return SecretStore::from_file(secret_file); });
}

std::optional<Secret> worker_secret(const Environment& environment) {
  const auto text = environment(kOfWorker);
  const auto path = environment(kFileOfWorker);
  if (text && path) fail(std::string(kOfWorker) + " and " + kFileOfWorker + " are set: set one");
  if (text) return about(kOfWorker, [&] { return secret_of(*text); });
  if (!path) return std::nullopt;
  return about(kFileOfWorker, [&] {
    PrivateText content;
    read_private(*path, content);
    std::string_view rest(content.bytes.data(), content.size);
    const std::string_view line = next_line(rest);
    if (line.find_first_of(kBlanks) != line.npos)
      fail("the first line of '" + *path +
           "' must be a secret without blanks, and nothing else: lines of JOB SECRET are for the"
           " daemon's secret-file");
    return secret_of(line);
  });
}

}  // namespace sluice::config
