#include "common/log/formats.hpp"

#include <cctype>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <string_view>
#include <system_error>

#include <spdlog/fmt/chrono.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log/fields.hpp"
#include "common/log/printable.hpp"

namespace sluice {
namespace {

using spdlog::details::log_msg;

std::string_view view(spdlog::string_view_t text) {
  return {text.data(), text.size()};
}

class TextFormatter final : public spdlog::formatter {
 public:
  void format(const log_msg& line, spdlog::memory_buf_t& out) override {
    const std::string text = printable(view(line.payload));
    log_msg shown = line;
    shown.payload = text;
    pattern_.format(shown, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TextFormatter>();
  }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%dT%H:%M:%S.%e%z %l %n: %v"};
};

std::string utc(spdlog::log_clock::time_point at) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(at);
  const auto rest = std::chrono::floor<std::chrono::milliseconds>(at - seconds);
  return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(seconds), rest.count());
}

/// Returns a JSON string. After printable(), no other characters need to be escaped.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const log_msg& line, spdlog::memory_buf_t& out) override {
    std::string object = "{\"time\":" + json_string(utc(line.time)) + ",\"level\":" +
                         json_string(view(spdlog::level::to_string_view(line.level))) +
                         ",\"process\":" + json_string(view(line.logger_name)) +
                         ",\"message\":" + json_string(view(line.payload));
    for (const LogField& field : LogContext::current()) {
      object += "," + json_string(field.name) + ":";
      if (const auto* const number = std::get_if<std::uint64_t>(&field.value))
        object += std::to_string(*number);
      else
        object += json_string(std::get<std::string>(field.value));
    }
    object += "}\n";
    out.append(object.data(), object.data() + object.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

/// The numbers of syslog(3).
int priority_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical:
      return 2;
    case spdlog::level::err:
      return 3;
    case spdlog::level::warn:
      return 4;
    case spdlog::level::info:
      return 6;
    default:
      return 7;
  }
}

class JournalSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit JournalSink(const std::string& path)
      : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (socket_ < 0) refuse(errno);
    if (path.empty() || path.size() >= sizeof address_.sun_path) refuse(ENAMETOOLONG);
    address_.sun_family = AF_UNIX;
    path.copy(address_.sun_path, path.size());
    // Each line is sent to the process that has the socket then: a connection would end with the
    // journal.
    if (connect(socket_, address(), sizeof address_) != 0) refuse(errno);
    const sockaddr nobody{AF_UNSPEC, {}};
    connect(socket_, &nobody, sizeof nobody);
  }
  ~JournalSink() override { close(socket_); }

 private:
  [[noreturn]] void refuse(int error) {
    if (socket_ >= 0) close(socket_);
    throw std::system_error(error, std::generic_category());
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  // A value has no line feed, so each field is a line NAME=VALUE.
  void sink_it_(const log_msg& line) override {
    std::string entry = "MESSAGE=" + printable(view(line.payload)) +
                        "\nPRIORITY=" + std::to_string(priority_of(line.level)) +
                        "\nSYSLOG_IDENTIFIER=" + printable(view(line.logger_name)) + '\n';
    for (const LogField& field : LogContext::current()) {
      entry += "SLUICE_";
      for (const char c : field.name)
        entry += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      const auto* const number = std::get_if<std::uint64_t>(&field.value);
      entry += '=' +
               (number != nullptr ? std::to_string(*number)
                                  : printable(std::get<std::string>(field.value))) +
               '\n';
    }
    if (sendto(socket_, entry.data(), entry.size(), MSG_NOSIGNAL | MSG_DONTWAIT, address(),
               sizeof address_) < 0)
      throw spdlog::spdlog_ex(std::string("journal '") + address_.sun_path + "'", errno);
  }
  void flush_() override {}

  const int socket_;
  sockaddr_un address_{};
};

}  // namespace

std::unique_ptr<spdlog::formatter> text_formatter() {
  return std::make_unique<TextFormatter>();
}

std::unique_ptr<spdlog::formatter> json_formatter() {
  return std::make_unique<JsonFormatter>();
}

spdlog::sink_ptr journal_sink(const std::string& path) {
  return std::make_shared<JournalSink>(path);
}

}  // namespace sluice
