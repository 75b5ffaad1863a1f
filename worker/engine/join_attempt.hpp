// One attempt of a rank to join at an aggregator (rules 16 and 17 of docs/protocol.md): what it
// asks for, what it was answered so far, and when it asks again. Pure state; the membership sends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::worker {

class JoinAttempt {
 public:
  struct Ask {
    Session wanted;             ///< and the generation held; 0: none
    std::uint64_t nonce = 0;    ///< not 0
    bool no_progress = true;    ///< no round has ended here
    bool is_again = false;      ///< the rank was in before
    bool is_sent_away = false;  ///< by the aggregator that had taken it in
  };

  JoinAttempt(Ask ask, Duration retry, Time now)
      : ask_(std::move(ask)), since_(now), due_(now), retry_(retry) {}

  const Ask& ask() const { return ask_; }
  Time since() const { return since_; }

  // --------------------------------------------------------------------------------- asking
  Time due() const { return due_; }  ///< of the next HELLO
  void ask_at(Time due) { due_ = due; }
  void hello_sent(Time now, Duration longest_retry);
  /// `from`: our UDP port. The JOIN is valid only from there.
  void join_sent(const wire::Join& join, std::uint16_t from) {
    join_ = join;
    join_from_ = from;
  }
  /// The newest JOIN, to be repeated from this port. Null: there is none.
  const wire::Join* join_from(std::uint16_t port) const {
    return join_ && join_from_ == port ? &*join_ : nullptr;
  }

  // ------------------------------------------------------------------------------- answers
  bool on_pending(const wire::Pending& packet);
  /// A packet says that its sender speaks other versions, or that we do not show the secret. It
  /// has no proof, and may answer a damaged HELLO, so several are needed. Returns whether there
  /// are enough.
  bool on_versions(const wire::Versions& packet);
  bool on_not_authenticated() { return ++not_shared_ >= kSayings; }

  bool is_answered() const { return is_answered_; }  ///< by a PENDING
  const RankSet& absent() const { return absent_; }  ///< as the last one says
  bool is_of_another_version() const { return versions_received_ >= kSayings; }

  /// " speaks version 3 of the protocol, this library version 4 (build ...): ..."
  std::string version_text() const;
  /// What packets said without proof. It may be the reason. Empty, or begins with "; ".
  std::string unproven_text() const;

 private:
  static constexpr unsigned kSayings = 3;

  Ask ask_;
  Time since_;
  Time due_;
  Duration retry_;
  std::optional<wire::Join> join_;
  std::uint16_t join_from_ = 0;
  bool is_answered_ = false;
  std::uint8_t lowest_version_ = 0, highest_version_ = 0;  // as VERSIONS said last
  unsigned versions_received_ = 0;
  unsigned not_shared_ = 0;
  std::uint64_t serial_ = 0;  // of the newest PENDING
  RankSet absent_;
};

}  // namespace sluice::worker
